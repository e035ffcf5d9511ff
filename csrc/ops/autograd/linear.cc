// Gradients of the linear layer and of the adapter on it. A frozen weight costs nothing: x is saved for it
// only where it is trained.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd/rounded.h"
#include "ops/linear.h"
#include "ops/quant.h"

namespace rlt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Which of x, w and bias are trained, noted in the forward pass and looked up in the backward pass.
void note_needs(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  TORCH_CHECK(!w.requires_grad() || w.scalar_type() == at::kFloat,
              "linear: a trained weight must be float32, got ", w.scalar_type());
  ctx->saved_data["needs_x"] = x.requires_grad();
  ctx->saved_data["needs_w"] = w.requires_grad();
  ctx->saved_data["needs_bias"] = bias && bias->requires_grad();
}

bool needs(AutogradContext* ctx, const char* what) { return ctx->saved_data[what].toBool(); }

// dW and the bias's gradient, each undefined where it is frozen.
std::pair<at::Tensor, at::Tensor> weight_grads(AutogradContext* ctx, const at::Tensor& grad,
                                               const at::Tensor& x) {
  return {needs(ctx, "needs_w") ? linear_weight_grad(grad, x) : at::Tensor(),
          needs(ctx, "needs_bias") ? grad.sum(0) : at::Tensor()};
}

// The weight that a layer stores, or rows of blocks dequantised for as long as it is used.
at::Tensor as_dense(const at::Tensor& w, int64_t quant, int64_t in) {
  return quant == static_cast<int64_t>(Quant::kNone) ? w : dequantize(w, quant, in);
}

int64_t inputs(const at::Tensor& x) { return x.dim() == 2 ? x.size(1) : 0; }

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& stored,
                            const OptionalTensor& bias, int64_t quant) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor w = as_dense(stored, quant, inputs(x));
    ctx->save_for_backward({stored, w.requires_grad() ? x : at::Tensor()});
    ctx->saved_data["quant"] = quant;
    ctx->saved_data["in"] = inputs(x);
    note_needs(ctx, x, w, bias);
    return rlt::linear(rounded(x, w.scalar_type()), w, bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[1], grad = grads[0].contiguous();
    const auto [grad_w, grad_bias] = weight_grads(ctx, grad, x);
    Variable grad_x;
    if (needs(ctx, "needs_x")) {
      grad_x = linear_input_grad(
          grad, as_dense(saved[0], ctx->saved_data["quant"].toInt(), ctx->saved_data["in"].toInt()));
    }
    return {grad_x, grad_w, grad_bias, Variable()};
  }
};

struct LoraLinear : torch::autograd::Function<LoraLinear> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& stored,
                               const OptionalTensor& bias, const at::Tensor& a, const at::Tensor& b,
                               double scale, double p, const OptionalTensor& row_keys, int64_t layer,
                               int64_t quant) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor w = as_dense(stored, quant, inputs(x_any));
    const at::Tensor whole = x_any.contiguous(), x = rounded(whole, w.scalar_type());
    // Dropout comes before rounding.
    auto [y, low] = lora_linear(p > 0 ? whole : x, w, bias, a, b, scale, p, row_keys, layer);
    ctx->save_for_backward({x, stored, a, b, low, row_keys.value_or(at::Tensor())});
    ctx->saved_data["quant"] = quant;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["p"] = p;
    ctx->saved_data["layer"] = layer;
    note_needs(ctx, x_any, w, bias);
    ctx->mark_non_differentiable({low});
    return {y, low};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &a = saved[2], &b = saved[3], &low = saved[4],
                     grad = grads[0].contiguous(),
                     w = as_dense(saved[1], ctx->saved_data["quant"].toInt(), x.size(1));
    const OptionalTensor row_keys = saved[5].defined() ? OptionalTensor(saved[5]) : std::nullopt;
    const auto [grad_x, grad_a, grad_b] = lora_grads(
        grad, x, w, a, b, low, ctx->saved_data["scale"].toDouble(), ctx->saved_data["p"].toDouble(), row_keys,
        ctx->saved_data["layer"].toInt(), needs(ctx, "needs_x"));
    const auto [grad_w, grad_bias] = weight_grads(ctx, grad, x);
    return {grad_x,     grad_w,     grad_bias,  grad_a,     grad_b,
            Variable(), Variable(), Variable(), Variable(), Variable()};
  }
};

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  return Linear::apply(x, w, bias, 0);
}

std::tuple<at::Tensor, at::Tensor> lora_linear_autograd(const at::Tensor& x, const at::Tensor& w,
                                                        const OptionalTensor& bias, const at::Tensor& a,
                                                        const at::Tensor& b, double scale, double p,
                                                        const OptionalTensor& row_keys, int64_t layer) {
  const auto out = LoraLinear::apply(x, w, bias, a, b, scale, p, row_keys, layer, 0);
  return {out[0], out[1]};
}

}  // namespace

at::Tensor quant_linear(const at::Tensor& x, const at::Tensor& rows, Quant quant,
                        const OptionalTensor& bias) {
  return Linear::apply(x, rows, bias, static_cast<int64_t>(quant));
}

at::Tensor quant_lora_linear(const at::Tensor& x, const at::Tensor& rows, Quant quant,
                             const OptionalTensor& bias, const at::Tensor& a, const at::Tensor& b,
                             double scale, double p, const OptionalTensor& row_keys, int64_t layer) {
  return LoraLinear::apply(x, rows, bias, a, b, scale, p, row_keys, layer, static_cast<int64_t>(quant))[0];
}

}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, Autograd, m) {
  m.impl("linear", &rlt::linear_autograd);
  m.impl("lora_linear", &rlt::lora_linear_autograd);
}
