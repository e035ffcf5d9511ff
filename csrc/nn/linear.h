// A linear layer with an optional low-rank adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/linear.h"

namespace rlt::nn {

// What a forward pass of the adapters needs to know beside the activations.
struct AdapterPass {
  bool on = false;
  double dropout = 0;
  OptionalTensor row_keys;  // [N] int64; set where dropout > 0
};

struct Linear {
  at::Tensor weight, bias;  // [out, in], [out] or undefined
  at::Tensor a, b;          // [r, in], [out, r]; undefined without an adapter
  double scale = 0;         // α/r
  int64_t index = 0;        // among the model's linear layers: tells their dropout masks apart

  at::Tensor forward(const at::Tensor& x, const AdapterPass& pass) const {
    const OptionalTensor shift = bias.defined() ? OptionalTensor(bias) : std::nullopt;
    if (!pass.on || !a.defined()) return rlt::linear(x, weight, shift);
    return std::get<0>(rlt::lora_linear(x, weight, shift, a, b, scale, pass.dropout, pass.row_keys, index));
  }
};

}  // namespace rlt::nn
