// Operators of a decoder's block, through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace rlt {

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                                            bool plus_one);
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, bool plus_one);
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t head_dim,
                bool inverse);
at::Tensor gated_act(const at::Tensor& gate, const at::Tensor& up, int64_t activation);
std::tuple<at::Tensor, at::Tensor> gated_act_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                      const at::Tensor& up, int64_t activation);

}  // namespace rlt
