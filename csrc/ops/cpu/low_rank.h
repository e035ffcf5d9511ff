// What an adapter adds to a linear layer, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace rlt {

// y += scale x aᵀbᵀ for dense x [N, in], a [r, in], b [out, r] and y [N, out]; returns x aᵀ.
at::Tensor add_low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b, double scale,
                        at::Tensor& y);
// The gradients of a and b from that of y, x and low = x aᵀ, all dense; adds x's to grad_x unless it is null.
std::tuple<at::Tensor, at::Tensor> low_rank_grads(const at::Tensor& grad, const at::Tensor& x,
                                                  const at::Tensor& low, const at::Tensor& a,
                                                  const at::Tensor& b, double scale, at::Tensor* grad_x);

}  // namespace rlt
