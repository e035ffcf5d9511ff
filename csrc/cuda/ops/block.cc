// RMS norm, rotary positions and the gated activation, of libtorch's operators.
#include "ops/block.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu_backward.h>
#include <torch/library.h>

#include "nn/activate.h"

namespace rlt {
namespace {

at::Tensor factor(const at::Tensor& weight, bool plus_one) { return plus_one ? weight.add(1) : weight; }

std::tuple<at::Tensor, at::Tensor> rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps,
                                                 bool plus_one) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 1 && weight.numel() == x.size(1), "rms_norm: weight ",
              weight.sizes(), " does not fit x ", x.sizes());
  const at::Tensor rstd = x.square().mean(1).add_(eps).rsqrt_();
  return {x.mul(rstd.unsqueeze(1)).mul_(factor(weight, plus_one)), rstd};
}

at::Tensor rms_norm_backward_cuda(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& rstd, bool plus_one) {
  const at::Tensor scale = rstd.unsqueeze(1), normed = x.mul(scale), g = grad.mul(factor(weight, plus_one));
  return g.sub(normed.mul(g.mul(normed).mean(1, true))).mul_(scale);
}

at::Tensor rope_cuda(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t head_dim,
                     bool inverse) {
  TORCH_CHECK(x.dim() == 2 && head_dim > 0 && x.size(1) % head_dim == 0, "rope: x ", x.sizes(),
              " does not divide into heads of ", head_dim);
  TORCH_CHECK(
      cos.dim() == 2 && cos.size(0) == x.size(0) && 2 * cos.size(1) <= head_dim && cos.sizes() == sin.sizes(),
      "rope: cos ", cos.sizes(), " and sin ", sin.sizes(), " do not fit x ", x.sizes(), " with heads of ",
      head_dim);
  const int64_t half = cos.size(1);
  const at::Tensor heads = x.reshape({x.size(0), x.size(1) / head_dim, head_dim});
  const at::Tensor a = heads.narrow(2, 0, half), b = heads.narrow(2, half, half),
                   rest = heads.narrow(2, 2 * half, head_dim - 2 * half);
  const at::Tensor c = cos.unsqueeze(1), s = inverse ? sin.neg().unsqueeze(1) : sin.unsqueeze(1);
  return at::cat({a.mul(c).sub(b.mul(s)), b.mul(c).add(a.mul(s)), rest}, 2).reshape(x.sizes());
}

void check_gated(const at::Tensor& gate, const at::Tensor& up, int64_t activation) {
  TORCH_CHECK(gate.sizes() == up.sizes(), "gated_act: gate ", gate.sizes(), " and up ", up.sizes(),
              " do not fit");
  TORCH_CHECK(activation >= RLT_ACT_SILU && activation <= RLT_ACT_RELU, "gated_act: unknown activation ",
              activation);
}

at::Tensor gated_act_cuda(const at::Tensor& gate, const at::Tensor& up, int64_t activation) {
  check_gated(gate, up, activation);
  return nn::activate(static_cast<int32_t>(activation), gate).mul_(up);
}

at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& gate, int64_t activation) {
  switch (activation) {
    case RLT_ACT_SILU:
      return at::silu_backward(grad, gate);
    case RLT_ACT_GELU:
      return at::gelu_backward(grad, gate);
    case RLT_ACT_GELU_TANH:
      return at::gelu_backward(grad, gate, "tanh");
    default:
      return grad.mul(gate.gt(0));
  }
}

std::tuple<at::Tensor, at::Tensor> gated_act_backward_cuda(const at::Tensor& grad, const at::Tensor& gate,
                                                           const at::Tensor& up, int64_t activation) {
  check_gated(gate, up, activation);
  return {activation_backward(grad.mul(up), gate, activation),
          nn::activate(static_cast<int32_t>(activation), gate).mul_(grad)};
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
