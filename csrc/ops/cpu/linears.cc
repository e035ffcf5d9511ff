// Layers of the same input with gradients.
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/layers.h"

namespace rlt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call : torch::CustomClassHolder {
  explicit Call(const std::vector<AdaptedLinear>& all) : layers(all) {}
  std::vector<AdaptedLinear> layers;
};

struct Linears : torch::autograd::Function<Linears> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x_any, at::TensorList params,
                               const c10::intrusive_ptr<Call>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor x = x_any.contiguous();
    LayersOut out = forward_layers(x, x, call->layers);
    // libtorch checks that what is saved is unchanged.
    variable_list saved{x, out.low};
    saved.insert(saved.end(), params.begin(), params.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->saved_data["needs_x"] = x_any.requires_grad();
    return out.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto call = c10::static_intrusive_pointer_cast<Call>(ctx->saved_data["call"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    for (at::Tensor& grad : grads) {
      if (grad.defined()) grad = grad.contiguous();
    }
    LayersGrads of =
        backward_layers(grads, saved[0], call->layers, saved[1], ctx->saved_data["needs_x"].toBool(), false);
    variable_list found{of.x};
    for (size_t i = 0; i < call->layers.size(); ++i) {
      if (call->layers[i].rank() == 0) continue;
      found.push_back(of.a[i]);
      found.push_back(of.b[i]);
    }
    found.emplace_back();  // of the call
    return found;
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<AdaptedLinear>& layers) {
  if (!at::GradMode::is_enabled()) {
    const at::Tensor dense = x.contiguous();
    return forward_layers(dense, dense, layers).y;
  }
  std::vector<at::Tensor> params;
  for (const AdaptedLinear& l : layers) {
    if (l.rank() > 0) params.insert(params.end(), {l.a, l.b});
  }
  return Linears::apply(x, at::TensorList(params), c10::make_intrusive<Call>(layers));
}

}  // namespace rlt
