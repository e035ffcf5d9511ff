// Gradients of the output head. Each log-probability is a scalar of its own hidden state, so its derivative
// is taken in the forward pass, beside the logits, and backward is one product with it. What few losses ask
// for, the entropy's gradient and the weight's, is recomputed when it is asked for.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/head.h"

namespace rlt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool trained(const OptionalTensor& t) { return t && t->requires_grad(); }

// The gradient as dense values, zeros where the loss does not depend on it.
at::Tensor or_zeros(const at::Tensor& grad, const at::Tensor& like) {
  return grad.defined() ? grad.contiguous() : at::zeros_like(like);
}

struct TokenLogprobs : torch::autograd::Function<TokenLogprobs> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight,
                               const OptionalTensor& bias, const at::Tensor& targets, double temperature,
                               double softcap, bool with_slope) {
    const at::AutoDispatchBelowADInplaceOrView below;
    TORCH_CHECK(!weight.requires_grad() || weight.scalar_type() == at::kFloat,
                "token_logprobs: a trained weight must be float32, got ", weight.scalar_type());
    auto [logprobs, entropy, rank, lse, slope] =
        token_logprobs(hidden, weight, bias, targets, temperature, softcap, with_slope);
    ctx->save_for_backward({hidden, weight, bias.value_or(at::Tensor()), targets, entropy, lse, slope});
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["softcap"] = softcap;
    ctx->saved_data["needs_hidden"] = hidden.requires_grad();
    ctx->saved_data["needs_weight"] = weight.requires_grad();
    ctx->saved_data["needs_bias"] = trained(bias);
    ctx->mark_non_differentiable({rank, lse, slope});
    ctx->set_materialize_grads(false);
    return {logprobs, entropy, rank, lse, slope};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &targets = saved[3], &entropy = saved[4],
                     &lse = saved[5], &slope = saved[6];
    const OptionalTensor bias = saved[2].defined() ? OptionalTensor(saved[2]) : std::nullopt;
    const double temperature = ctx->saved_data["temperature"].toDouble(),
                 softcap = ctx->saved_data["softcap"].toDouble();
    const at::Tensor grad_logprobs = or_zeros(grads[0], entropy), grad_entropy = or_zeros(grads[1], entropy);
    at::Tensor grad_hidden, grad_weight, grad_bias;
    if (ctx->saved_data["needs_hidden"].toBool()) {
      // Whether a gradient that is there is zero is not looked at: that would wait for the device.
      grad_hidden = grads[1].defined()
                        ? token_logprobs_hidden_grad(grad_logprobs, grad_entropy, hidden, weight, bias,
                                                     targets, entropy, lse, temperature, softcap)
                        : slope.mul(grad_logprobs.unsqueeze(1));
    }
    const bool needs_weight = ctx->saved_data["needs_weight"].toBool(),
               needs_bias = ctx->saved_data["needs_bias"].toBool();
    if (needs_weight || needs_bias) {
      std::tie(grad_weight, grad_bias) = token_logprobs_weight_grad(
          grad_logprobs, grad_entropy, hidden, weight, bias, targets, entropy, lse, temperature, softcap);
    }
    return {grad_hidden,
            needs_weight ? grad_weight : Variable(),
            needs_bias ? grad_bias : Variable(),
            Variable(),
            Variable(),
            Variable(),
            Variable()};
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> token_logprobs_autograd(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias, const at::Tensor& targets,
    double temperature, double softcap, bool slope) {
  const bool train = at::GradMode::is_enabled() && hidden.requires_grad();
  const auto out = TokenLogprobs::apply(hidden, weight, bias, targets, temperature, softcap, slope || train);
  return {out[0], out[1], out[2], out[3], out[4]};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, Autograd, m) { m.impl("token_logprobs", &rlt::token_logprobs_autograd); }
