// The linear layer and the adapter on it, through the dispatcher: autograd above, the device's kernel below.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

namespace rlt {

using OptionalTensor = std::optional<at::Tensor>;

// A frozen layer [out, in] and its adapter, which is undefined where there is none.
struct AdaptedLinear {
  at::Tensor w;
  OptionalTensor bias;
  at::Tensor a, b;
  double scale = 0;

  int64_t rank() const { return a.defined() ? a.size(0) : 0; }
};
// The outputs of layers of the same input, on the CPU, where they share passes over it and its gradient.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<AdaptedLinear>& layers);

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias);
std::tuple<at::Tensor, at::Tensor> lora_linear(const at::Tensor& x, const at::Tensor& w,
                                               const OptionalTensor& bias, const at::Tensor& a,
                                               const at::Tensor& b, double scale, double p,
                                               const OptionalTensor& row_keys, int64_t layer);
at::Tensor linear_input_grad(const at::Tensor& grad, const at::Tensor& w);
at::Tensor linear_weight_grad(const at::Tensor& grad, const at::Tensor& x);
// The gradients of x, undefined unless it is wanted, of a and of b.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lora_grads(const at::Tensor& grad, const at::Tensor& x,
                                                          const at::Tensor& w, const at::Tensor& a,
                                                          const at::Tensor& b, const at::Tensor& low,
                                                          double scale, double p,
                                                          const OptionalTensor& row_keys, int64_t layer,
                                                          bool needs_x);
at::Tensor hash_dropout(const at::Tensor& x, const at::Tensor& row_keys, int64_t layer, double p);

}  // namespace rlt
