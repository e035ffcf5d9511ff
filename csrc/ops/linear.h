// The linear layer and the adapter on it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace rlt {

using OptionalTensor = std::optional<at::Tensor>;

// x wᵀ + bias for dense x [N, in] and w [out, in], which may be a transposed view.
at::Tensor dense_linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias);
// grad w, the gradient of x, for dense grad [N, out] and w [out, in] float32, bfloat16 or float16.
at::Tensor linear_input_grad(const at::Tensor& grad, const at::Tensor& w);

// y += scale x aᵀbᵀ for dense x [N, in], a [r, in], b [out, r] and y [N, out]; returns x aᵀ.
at::Tensor add_low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b, double scale,
                        at::Tensor& y);
// The gradients of a and b from that of y, x and low = x aᵀ, all dense; adds x's to grad_x unless it is null.
std::tuple<at::Tensor, at::Tensor> low_rank_grads(const at::Tensor& grad, const at::Tensor& x,
                                                  const at::Tensor& low, const at::Tensor& a,
                                                  const at::Tensor& b, double scale, at::Tensor* grad_x);

// Through the dispatcher: autograd above, the device's kernel below.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias);
std::tuple<at::Tensor, at::Tensor> lora_linear(const at::Tensor& x, const at::Tensor& w,
                                               const OptionalTensor& bias, const at::Tensor& a,
                                               const at::Tensor& b, double scale, double p,
                                               const OptionalTensor& row_keys, int64_t layer);
at::Tensor hash_dropout(const at::Tensor& x, const at::Tensor& row_keys, int64_t layer, double p);

}  // namespace rlt
