// A linear layer with an optional low-rank adapter.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "ops/linear.h"
#include "ops/quant.h"

namespace rlt::nn {

// What a forward pass of the adapters needs to know beside the activations.
struct AdapterPass {
  bool on = false;
  double dropout = 0;
  OptionalTensor row_keys;  // [N] int64; set where dropout > 0
};

struct Adapter {
  at::Tensor a, b;       // [r, in], [out, r]; undefined without an adapter
  at::Tensor magnitude;  // [out] of DoRA; undefined without
  double scale = 0;      // α/r
};

struct Linear : Adapter {
  at::Tensor weight, bias;  // [out, in], or rows of blocks where quantised; [out] or undefined
  Quant quant = Quant::kNone;
  int64_t inputs = 0;    // where quantised
  bool rounded = false;  // where quantised: to bfloat16 on every processor
  int64_t index = 0;     // among the model's linear layers: tells their dropout masks apart

  bool quantised() const { return quant != Quant::kNone; }
  int64_t in() const { return quantised() ? inputs : weight.size(1); }
  int64_t out() const { return weight.size(0); }
  // What products take the weight for.
  at::ScalarType type() const {
    return !quantised() ? weight.scalar_type() : rounded ? at::kBFloat16 : quant_type();
  }
  // The weight [out, in] of that type.
  at::Tensor dense() const {
    return quantised() ? dequantize(weight, static_cast<int64_t>(quant), inputs, type()) : weight.detach();
  }

  bool frozen_or_none() const { return !weight.defined() || frozen(); }
  bool frozen() const { return !weight.requires_grad() && !(bias.defined() && bias.requires_grad()); }
  OptionalTensor shift() const { return bias.defined() ? OptionalTensor(bias) : std::nullopt; }

  at::Tensor forward(const at::Tensor& x, const AdapterPass& pass) const {
    if (pass.on && magnitude.defined()) return decomposed(x, pass);
    if (quantised() && (!pass.on || !a.defined())) return quant_linear(x, weight, quant, shift());
    if (quantised()) {
      return quant_lora_linear(x, weight, quant, shift(), a, b, scale, pass.dropout, pass.row_keys, index);
    }
    if (!pass.on || !a.defined()) return rlt::linear(x, weight, shift());
    return std::get<0>(rlt::lora_linear(x, weight, shift(), a, b, scale, pass.dropout, pass.row_keys, index));
  }
  // y = magnitude/‖W + scale·B·A‖ ⊙ (W + scale·B·A) x + bias by rows (Liu 2024, eq. 5), with norms that have
  // no gradient (eq. 11). Dropout is as in PEFT: x where nothing is trained, dropout(x) in the rest of the
  // sum.
  at::Tensor decomposed(const at::Tensor& x, const AdapterPass& pass) const;
};

// The outputs of layers of the same input. On the CPU frozen layers share their passes over x and its
// gradient.
inline std::vector<at::Tensor> forward_all(const std::vector<const Linear*>& layers, const at::Tensor& x,
                                           const AdapterPass& pass) {
  bool together = x.is_cpu() && pass.dropout == 0, adapted = false;
  for (const Linear* l : layers) {
    together = together && !l->quantised() && l->frozen() && !l->magnitude.defined();
    adapted = adapted || (pass.on && l->a.defined());
  }
  std::vector<at::Tensor> out;
  // Without an adapter there is nothing to keep x for.
  if (!together || (!adapted && at::GradMode::is_enabled())) {
    for (const Linear* l : layers) out.push_back(l->forward(x, pass));
    return out;
  }
  std::vector<AdaptedLinear> all;
  for (const Linear* l : layers) {
    const bool on = pass.on && l->a.defined();
    all.push_back({l->weight, l->shift(), on ? l->a : at::Tensor(), on ? l->b : at::Tensor(), l->scale});
  }
  return linears(x, all);
}

}  // namespace rlt::nn
