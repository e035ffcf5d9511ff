// RMS norm, rotary embeddings and gated activations.
#include "ops/block.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cuda/ops/launch.h"
#include "rltrain.h"

namespace rlt {
namespace {

void check_norm(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 1 && weight.numel() == x.size(1) && x.size(1) > 0,
              "rms_norm: weight ", weight.sizes(), " does not fit x ", x.sizes());
  check_floats("rms_norm", {x, weight});
}

std::tuple<at::Tensor, at::Tensor> rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps,
                                                 bool plus_one) {
  check_norm(x, weight);
  const at::Tensor in = dense_rows(x), w = weight.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options()), rstd = at::empty({x.size(0)}, x.options());
  cuda::rms_norm(Launch(x).stream, matrix(in), floats(w), plus_one, eps, out(y), cuda::Type::kF32, out(rstd),
                 x.size(0), x.size(1));
  return {y, rstd};
}

at::Tensor rms_norm_backward_cuda(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& rstd, bool plus_one) {
  check_norm(x, weight);
  TORCH_CHECK(grad.sizes() == x.sizes() && rstd.numel() == x.size(0), "rms_norm_backward: grad ",
              grad.sizes(), " and rstd ", rstd.sizes(), " do not fit x ", x.sizes());
  check_floats("rms_norm_backward", {x, grad, rstd});
  const at::Tensor in = dense_rows(x), of_y = dense_rows(grad), w = weight.contiguous(),
                   r = rstd.contiguous();
  at::Tensor grad_x = at::empty(x.sizes(), x.options());
  cuda::rms_norm_backward(Launch(x).stream, matrix(of_y), matrix(in), floats(w), plus_one, floats(r),
                          out(grad_x), x.size(0), x.size(1));
  return grad_x;
}

at::Tensor rope_cuda(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t head_dim,
                     bool inverse) {
  TORCH_CHECK(x.dim() == 2 && head_dim > 0 && x.size(1) % head_dim == 0, "rope: x ", x.sizes(),
              " does not divide into heads of ", head_dim);
  TORCH_CHECK(
      cos.dim() == 2 && cos.size(0) == x.size(0) && 2 * cos.size(1) <= head_dim && cos.sizes() == sin.sizes(),
      "rope: cos ", cos.sizes(), " and sin ", sin.sizes(), " do not fit x ", x.sizes(), " with heads of ",
      head_dim);
  check_floats("rope", {x, cos, sin});
  const at::Tensor in = dense_rows(x), c = cos.contiguous(), s = sin.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  cuda::rope(Launch(x).stream, matrix(in), floats(c), floats(s), inverse, out(y), x.size(0),
             x.size(1) / head_dim, head_dim, cos.size(1));
  return y;
}

void check_gated(const at::Tensor& gate, const at::Tensor& up, int64_t activation) {
  TORCH_CHECK(gate.dim() == 2 && gate.sizes() == up.sizes(), "gated_act: gate ", gate.sizes(), " and up ",
              up.sizes(), " do not fit");
  TORCH_CHECK(activation >= RLT_ACT_SILU && activation <= RLT_ACT_RELU, "gated_act: unknown activation ",
              activation);
  check_floats("gated_act", {gate, up});
}

at::Tensor gated_act_cuda(const at::Tensor& gate, const at::Tensor& up, int64_t activation) {
  check_gated(gate, up, activation);
  const at::Tensor g = dense_rows(gate), u = dense_rows(up);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  cuda::gated(Launch(gate).stream, matrix(g), matrix(u), static_cast<int32_t>(activation), out(y),
              cuda::Type::kF32, gate.size(0), gate.size(1));
  return y;
}

std::tuple<at::Tensor, at::Tensor> gated_act_backward_cuda(const at::Tensor& grad, const at::Tensor& gate,
                                                           const at::Tensor& up, int64_t activation) {
  check_gated(gate, up, activation);
  TORCH_CHECK(grad.sizes() == gate.sizes(), "gated_act_backward: grad ", grad.sizes(), " does not fit gate ",
              gate.sizes());
  check_floats("gated_act_backward", {gate, grad});
  const at::Tensor of_y = grad.contiguous(), g = dense_rows(gate), u = dense_rows(up);
  at::Tensor grad_gate = at::empty(gate.sizes(), gate.options()),
             grad_up = at::empty(gate.sizes(), gate.options());
  cuda::gated_backward(Launch(gate).stream, floats(of_y), matrix(g), matrix(u),
                       static_cast<int32_t>(activation), out(grad_gate), out(grad_up), gate.size(0),
                       gate.size(1));
  return {grad_gate, grad_up};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CUDA, m) {
  m.impl("rms_norm", &rlt::rms_norm_cuda);
  m.impl("rms_norm_backward", &rlt::rms_norm_backward_cuda);
  m.impl("rope", &rlt::rope_cuda);
  m.impl("gated_act", &rlt::gated_act_cuda);
  m.impl("gated_act_backward", &rlt::gated_act_backward_cuda);
}
