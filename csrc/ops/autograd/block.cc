// Gradients of the operators of a decoder's block. What can be computed again cheaply is not saved.
#include "ops/block.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace rlt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               double eps, bool plus_one) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [y, rstd] = rms_norm(x, weight, eps, plus_one);
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["plus_one"] = plus_one;
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["needs_weight"] = weight.requires_grad();
    ctx->mark_non_differentiable({rstd});
    return {y, rstd};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = ctx->get_saved_variables();
    const at::Tensor &x = s[0], &weight = s[1], &rstd = s[2], grad = grads[0].contiguous();
    Variable grad_x, grad_weight;
    if (ctx->saved_data["needs_x"].toBool()) {
      grad_x = rms_norm_backward(grad, x, weight, rstd, ctx->saved_data["plus_one"].toBool());
    }
    if (ctx->saved_data["needs_weight"].toBool()) {
      grad_weight = grad.mul(x).mul_(rstd.unsqueeze(1)).sum(0);
    }
    return {grad_x, grad_weight, Variable(), Variable()};
  }
};

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, int64_t head_dim, bool inverse) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["head_dim"] = head_dim;
    ctx->saved_data["inverse"] = inverse;
    return rope(x, cos, sin, head_dim, inverse);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = ctx->get_saved_variables();
    const at::Tensor grad = rope(grads[0].contiguous(), s[0], s[1], ctx->saved_data["head_dim"].toInt(),
                                 !ctx->saved_data["inverse"].toBool());
    return {grad, Variable(), Variable(), Variable(), Variable()};
  }
};

struct GatedAct : torch::autograd::Function<GatedAct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up,
                            int64_t activation) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({gate, up});
    ctx->saved_data["activation"] = activation;
    return gated_act(gate, up, activation);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = ctx->get_saved_variables();
    auto [gate, up] =
        gated_act_backward(grads[0].contiguous(), s[0], s[1], ctx->saved_data["activation"].toInt());
    return {gate, up, Variable()};
  }
};

std::tuple<at::Tensor, at::Tensor> rms_norm_autograd(const at::Tensor& x, const at::Tensor& weight,
                                                     double eps, bool plus_one) {
  const auto out = RmsNorm::apply(x, weight, eps, plus_one);
  return {out[0], out[1]};
}

at::Tensor rope_autograd(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t head_dim,
                         bool inverse) {
  return RopeFunction::apply(x, cos, sin, head_dim, inverse);
}

at::Tensor gated_act_autograd(const at::Tensor& gate, const at::Tensor& up, int64_t activation) {
  return GatedAct::apply(gate, up, activation);
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, Autograd, m) {
  m.impl("rms_norm", &rlt::rms_norm_autograd);
  m.impl("rope", &rlt::rope_autograd);
  m.impl("gated_act", &rlt::gated_act_autograd);
}
