// A linear layer with an optional low-rank adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/linear.h"
#include "ops/quant.h"

namespace rlt::nn {

// What a forward pass of the adapters needs to know beside the activations.
struct AdapterPass {
  bool on = false;
  double dropout = 0;
  OptionalTensor row_keys;  // [N] int64; set where dropout > 0
};

struct Linear {
  at::Tensor weight, bias;  // [out, in], or rows of blocks where quantised; [out] or undefined
  Quant quant = Quant::kNone;
  int64_t inputs = 0;  // where quantised
  at::Tensor a, b;     // [r, in], [out, r]; undefined without an adapter
  double scale = 0;    // α/r
  int64_t index = 0;   // among the model's linear layers: tells their dropout masks apart

  bool quantised() const { return quant != Quant::kNone; }
  int64_t in() const { return quantised() ? inputs : weight.size(1); }
  int64_t out() const { return weight.size(0); }
  // What products take the weight for.
  at::ScalarType type() const { return quantised() ? at::kBFloat16 : weight.scalar_type(); }
  // The weight [out, in] of that type.
  at::Tensor dense() const {
    return quantised() ? dequantize(weight, static_cast<int64_t>(quant), inputs) : weight.detach();
  }

  at::Tensor forward(const at::Tensor& x, const AdapterPass& pass) const {
    const OptionalTensor shift = bias.defined() ? OptionalTensor(bias) : std::nullopt;
    if (quantised() && (!pass.on || !a.defined())) return quant_linear(x, weight, quant, shift);
    if (quantised()) {
      return quant_lora_linear(x, weight, quant, shift, a, b, scale, pass.dropout, pass.row_keys, index);
    }
    if (!pass.on || !a.defined()) return rlt::linear(x, weight, shift);
    return std::get<0>(rlt::lora_linear(x, weight, shift, a, b, scale, pass.dropout, pass.row_keys, index));
  }
};

}  // namespace rlt::nn
