#include "nn/joined.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "nn/joined_weight.h"
#include "ops/autograd/rounded.h"
#include "ops/product.h"

namespace rlt::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What a pass multiplies by, for as long as backward may come.
struct Call : torch::CustomClassHolder {
  struct Part {
    int64_t out, column, rank;  // its columns of low; rank 0: no adapter
    double scale;
    at::Tensor b;  // [out, rank]
  };
  at::Tensor w, bias, a;  // a undefined without adapters
  std::vector<Part> parts;
};

// What a GPU multiplies in; the CPU widens.
at::ScalarType type_of_products(const at::Tensor& w) { return w.is_cuda() ? w.scalar_type() : at::kFloat; }

at::Tensor as_weight(const at::Tensor& t, const at::Tensor& w) { return t.to(type_of_products(w)); }

// into = alpha · x b.
void multiply_into(at::Tensor& into, const at::Tensor& x, const at::Tensor& b, double alpha) {
  // addmm takes a row or a column for a bias.
  if (into.size(0) == 1 || into.size(1) == 1) {
    into.copy_(at::mm(x, b).mul_(alpha));
  } else {
    at::addmm_out(into, into, x, b, 0, alpha);
  }
}

// With u = x aᵀ: y = x wᵀ + bias + scale · u bᵀ (Hu 2021, eq. 3), for all layers at once.
struct Joined : torch::autograd::Function<Joined> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x_any, at::TensorList params,
                               const c10::intrusive_ptr<Call>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor x = rounded(x_any, call->w.scalar_type());
    at::Tensor y = product(x, call->w), low;
    if (call->bias.defined()) y.add_(call->bias);
    if (call->a.defined()) low = as_weight(product(x, call->a), call->w);
    variable_list outs;
    int64_t column = 0;
    for (const Call::Part& part : call->parts) {
      at::Tensor out = y.narrow(1, column, part.out);
      if (part.rank > 0) {
        product_into(out, low.narrow(1, part.column, part.rank), part.b, part.scale);
      }
      outs.push_back(out);
      column += part.out;
    }
    // Backward multiplies by copies of the parameters, which are current only while those are unchanged:
    // libtorch checks the versions of what is saved.
    variable_list saved{x, low};
    saved.insert(saved.end(), params.begin(), params.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->saved_data["needs_x"] = x_any.requires_grad();
    return outs;
  }

  // dB = scale · dyᵀ u; du = scale · dy B; dA = duᵀ x; dx = dy W + du A.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto call = c10::static_intrusive_pointer_cast<Call>(ctx->saved_data["call"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &low = saved[1], g = joined(*call, x, grads);
    const bool needs_x = ctx->saved_data["needs_x"].toBool();
    at::Tensor grad_x, grad_low, grad_a;
    if (needs_x) grad_x = product_back(g, call->w);
    variable_list found{grad_x}, of_b;
    if (call->a.defined()) {
      grad_low = at::empty(low.sizes(), low.options());
      int64_t column = 0;
      for (const Call::Part& part : call->parts) {
        const at::Tensor own = g.narrow(1, column, part.out);
        column += part.out;
        if (part.rank == 0) continue;
        at::Tensor into = grad_low.narrow(1, part.column, part.rank);
        multiply_into(into, own, part.b, part.scale);
        of_b.push_back(product_scaled(own.t(), low.narrow(1, part.column, part.rank).t(), part.scale));
      }
      if (needs_x) product_into(grad_x, grad_low, call->a.t(), 1);
      grad_a = product(grad_low.t(), x.t());
      size_t i = 0;
      for (const Call::Part& part : call->parts) {
        if (part.rank == 0) continue;
        found.push_back(grad_a.narrow(0, part.column, part.rank));
        found.push_back(of_b[i++]);
      }
    }
    found.emplace_back();  // of the call
    return found;
  }

  // The layers' gradients side by side, in the type of the products.
  static at::Tensor joined(const Call& call, const at::Tensor& x, const variable_list& grads) {
    if (grads.size() == 1 && grads[0].defined()) return as_weight(grads[0].contiguous(), call.w);
    at::Tensor all = at::empty({x.size(0), call.w.size(0)}, x.options());
    int64_t column = 0;
    for (size_t i = 0; i < grads.size(); ++i) {
      at::Tensor own = all.narrow(1, column, call.parts[i].out);
      grads[i].defined() ? own.copy_(grads[i]) : own.zero_();
      column += call.parts[i].out;
    }
    return all;
  }
};

}  // namespace

bool JoinedLinear::fits() const {
  if (layers_.empty()) return true;
  const at::ScalarType type = layers_[0]->weight.scalar_type();  // uint8 where quantised
  if (type != at::kFloat && type != at::kBFloat16) return false;
  return std::all_of(layers_.begin(), layers_.end(), [&](const Linear* l) {
    return l->weight.scalar_type() == type && !l->weight.requires_grad() && !l->magnitude.defined() &&
           !(l->bias.defined() && l->bias.requires_grad());
  });
}

void JoinedLinear::list_copies(std::vector<at::Tensor>& to, std::vector<at::Tensor>& from) const {
  if (layers_.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::Tensor& first = layers_[0]->weight;
  const at::TensorOptions options = first.options().dtype(type_of_products(first));
  int64_t rank = 0, column = 0;
  std::vector<std::pair<at::Tensor, int64_t>> now;
  for (const Linear* layer : layers_) {
    if (!layer->a.defined()) continue;
    rank += layer->a.size(0);
    now.emplace_back(layer->a, layer->a._version());
    now.emplace_back(layer->b, layer->b._version());
  }
  if (rank == 0) return;
  const auto same = [](const auto& x, const auto& y) {
    return x.first.is_same(y.first) && x.second == y.second;
  };
  if (std::equal(now.begin(), now.end(), copied_.begin(), copied_.end(), same)) return;
  copied_ = std::move(now);
  if (!a_.defined() || a_.size(0) != rank) a_ = at::empty({rank, first.size(1)}, options);
  b_.resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Linear& layer = *layers_[i];
    if (!layer.a.defined()) continue;
    const int64_t r = layer.a.size(0);
    if (!b_[i].defined() || b_[i].size(1) != r) b_[i] = at::empty({layer.b.size(0), r}, options);
    to.push_back(a_.narrow(0, column, r));
    from.push_back(layer.a.detach());
    to.push_back(b_[i]);
    from.push_back(layer.b.detach());
    column += r;
  }
}

std::vector<at::Tensor> JoinedLinear::forward(const at::Tensor& x, bool adapted) const {
  const auto call = c10::make_intrusive<Call>();
  std::vector<at::Tensor> params;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    const std::lock_guard<std::mutex> lock(mutex_);
    call->w = joined_weight(layers_);
    const bool biased =
        std::any_of(layers_.begin(), layers_.end(), [](const Linear* l) { return l->bias.defined(); });
    if (biased && !bias_.defined()) {
      std::vector<at::Tensor> parts;
      for (const Linear* l : layers_) {
        parts.push_back(l->bias.defined() ? l->bias.detach()
                                          : at::zeros({l->weight.size(0)}, x.options().dtype(at::kFloat)));
      }
      bias_ = at::cat(parts);
    }
    call->bias = bias_;
    int64_t column = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Linear& layer = *layers_[i];
      Call::Part part{layer.weight.size(0), column, 0, layer.scale, {}};
      if (adapted && layer.a.defined()) {
        call->a = a_;
        part.rank = layer.a.size(0);
        part.b = b_[i];
        params.push_back(layer.a);
        params.push_back(layer.b);
      }
      column += layer.a.defined() ? layer.a.size(0) : 0;
      call->parts.push_back(part);
    }
  }
  return Joined::apply(x, at::TensorList(params), call);
}

}  // namespace rlt::nn
