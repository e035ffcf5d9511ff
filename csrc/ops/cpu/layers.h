// Linear layers of the same input with their adapters, forward and backward, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/linear.h"

namespace rlt {

struct LayersOut {
  std::vector<at::Tensor> y;  // of each layer, [N, out]
  at::Tensor low;             // adapted aᵀ of all adapters side by side, [N, Σ r]
};
// x wᵀ + bias + scale (adapted aᵀ) bᵀ of each layer, for dense x [N, in] and adapted, which is x or x after
// dropout.
LayersOut forward_layers(const at::Tensor& x, const at::Tensor& adapted,
                         const std::vector<AdaptedLinear>& layers);

struct LayersGrads {
  at::Tensor x;                  // undefined unless asked for
  at::Tensor adapted;            // the same of the adapters' input, where it is another than x
  std::vector<at::Tensor> a, b;  // of each layer; undefined without an adapter
};
// The gradients of forward_layers from those of y, each dense or undefined for zeros.
LayersGrads backward_layers(const std::vector<at::Tensor>& grads, const at::Tensor& adapted,
                            const std::vector<AdaptedLinear>& layers, const at::Tensor& low, bool needs_x,
                            bool apart);

// x wᵀ + bias, and grad w, for any type of w. Both are dense float32.
at::Tensor linear_cpu(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias);
at::Tensor input_grad_cpu(const at::Tensor& grad, const at::Tensor& w);

}  // namespace rlt
