// Residual addition with layer norm.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cuda/ops/launch.h"

namespace rlt {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_cuda(const at::Tensor& x,
                                                                               const at::Tensor& residual,
                                                                               const at::Tensor& weight,
                                                                               const at::Tensor& bias,
                                                                               double eps) {
  TORCH_CHECK(x.dim() == 2 && residual.sizes() == x.sizes() && weight.numel() == x.size(1) &&
                  bias.numel() == x.size(1) && x.size(1) > 0,
              "add_layer_norm: x ", x.sizes(), ", residual ", residual.sizes(), ", weight ", weight.sizes(),
              " and bias ", bias.sizes(), " do not fit");
  check_floats("add_layer_norm", {x, residual, weight, bias});
  const at::Tensor in = dense_rows(x), more = residual.contiguous(), w = weight.contiguous(),
                   b = bias.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options()), sum = at::empty(x.sizes(), x.options());
  at::Tensor mean = at::empty({x.size(0)}, x.options()), rstd = at::empty({x.size(0)}, x.options());
  cuda::layer_norm(Launch(x).stream, matrix(in), floats(more), floats(w), floats(b), eps, out(y),
                   cuda::Type::kF32, out(sum), out(mean), out(rstd), x.size(0), x.size(1));
  return {y, sum, mean, rstd};
}

at::Tensor add_layer_norm_backward_cuda(const at::Tensor& grad, const at::Tensor& sum,
                                        const at::Tensor& weight, const at::Tensor& mean,
                                        const at::Tensor& rstd) {
  TORCH_CHECK(grad.dim() == 2 && sum.sizes() == grad.sizes() && weight.numel() == grad.size(1) &&
                  mean.numel() == grad.size(0) && rstd.numel() == grad.size(0),
              "add_layer_norm_backward: grad ", grad.sizes(), ", sum ", sum.sizes(), ", weight ",
              weight.sizes(), ", mean ", mean.sizes(), " and rstd ", rstd.sizes(), " do not fit");
  check_floats("add_layer_norm_backward", {grad, sum, weight, mean, rstd});
  const at::Tensor of_y = grad.contiguous(), in = sum.contiguous(), w = weight.contiguous(),
                   m = mean.contiguous(), r = rstd.contiguous();
  at::Tensor grad_x = at::empty(grad.sizes(), grad.options());
  cuda::layer_norm_backward(Launch(grad).stream, floats(of_y), floats(in), floats(w), floats(m), floats(r),
                            out(grad_x), grad.size(0), grad.size(1));
  return grad_x;
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CUDA, m) {
  m.impl("add_layer_norm", &rlt::add_layer_norm_cuda);
  m.impl("add_layer_norm_backward", &rlt::add_layer_norm_backward_cuda);
}
