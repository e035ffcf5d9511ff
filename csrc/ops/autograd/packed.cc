// Gradients of the operators on packed batches.
#include <ATen/ops/empty.h>
#include <ATen/ops/logaddexp.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd/rounded.h"
#include "ops/packed.h"
#include "ops/sinks.h"

namespace rlt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& cu_seqlens, int64_t heads, double scale,
                               bool causal, int64_t window, double softcap,
                               const std::optional<at::Tensor>& continues,
                               std::optional<at::ScalarType> compute, const at::Tensor& sinks) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::ScalarType type = compute.value_or(at::kFloat);
    const at::Tensor q_in = rounded(q, type), k_in = rounded(k, type), v_in = rounded(v, type);
    auto [out, lse] = varlen_attention(q_in, k_in, v_in, cu_seqlens, heads, scale, causal, window, softcap,
                                       continues, compute);
    if (sinks.numel() > 0) {  // a key more, whose value is 0
      const at::Tensor all = at::logaddexp(lse, sinks.unsqueeze(1));
      out.view({out.size(0), heads, -1}).mul_(lse.sub(all).exp().t().unsqueeze(2));
      lse = all;
    }
    ctx->save_for_backward(
        {q_in, k_in, v_in, rounded(out, type), lse, cu_seqlens, continues.value_or(at::Tensor()), sinks});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["window"] = window;
    ctx->saved_data["softcap"] = softcap;
    ctx->saved_data["compute"] = compute;
    ctx->mark_non_differentiable({lse});
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    auto [q, k, v] = varlen_attention_backward(
        grads[0].contiguous(), s[0], s[1], s[2], s[3], s[4], s[5], data["heads"].toInt(),
        data["scale"].toDouble(), data["causal"].toBool(), data["window"].toInt(), data["softcap"].toDouble(),
        s[6].defined() ? std::optional<at::Tensor>(s[6]) : std::nullopt,
        data["compute"].toOptional<at::ScalarType>());
    variable_list found(12);
    found[0] = q;
    found[1] = k;
    found[2] = v;
    if (s[7].numel() > 0) {
      const at::Tensor slope = grads[0].mul(s[3]).view({grads[0].size(0), s[7].size(0), -1}).sum(2);
      found[11] = s[7].sub(s[4].t()).exp().mul(slope).sum(0).neg();
    }
    return found;
  }
};

struct AddLayerNorm : torch::autograd::Function<AddLayerNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& residual,
                               const at::Tensor& weight, const at::Tensor& bias, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [y, sum, mean, rstd] = add_layer_norm(x, residual, weight, bias, eps);
    ctx->save_for_backward({sum, weight, mean, rstd});
    ctx->mark_non_differentiable({sum, mean, rstd});
    return {y, sum, mean, rstd};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = ctx->get_saved_variables();
    const at::Tensor grad = add_layer_norm_backward(grads[0].contiguous(), s[0], s[1], s[2], s[3]);
    return {grad, grad, Variable(), Variable(), Variable()};
  }
};

struct SegmentMean : torch::autograd::Function<SegmentMean> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cu_seqlens) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({cu_seqlens});
    return segment_mean(x, cu_seqlens);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {segment_mean_backward(grads[0].contiguous(), ctx->get_saved_variables()[0]), Variable()};
  }
};

std::tuple<at::Tensor, at::Tensor> attention_autograd(const at::Tensor& q, const at::Tensor& k,
                                                      const at::Tensor& v, const at::Tensor& cu_seqlens,
                                                      int64_t heads, double scale, bool causal,
                                                      int64_t window, double softcap,
                                                      const std::optional<at::Tensor>& continues,
                                                      std::optional<at::ScalarType> compute) {
  const auto out = Attention::apply(q, k, v, cu_seqlens, heads, scale, causal, window, softcap, continues,
                                    compute, at::empty({0}));
  return {out[0], out[1]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_autograd(const at::Tensor& x,
                                                                                   const at::Tensor& residual,
                                                                                   const at::Tensor& weight,
                                                                                   const at::Tensor& bias,
                                                                                   double eps) {
  const auto out = AddLayerNorm::apply(x, residual, weight, bias, eps);
  return {out[0], out[1], out[2], out[3]};
}

at::Tensor segment_mean_autograd(const at::Tensor& x, const at::Tensor& cu_seqlens) {
  return SegmentMean::apply(x, cu_seqlens);
}

}  // namespace

at::Tensor sink_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& cu_seqlens, int64_t heads, double scale, int64_t window,
                          const at::Tensor& continues, at::ScalarType compute, const at::Tensor& sinks) {
  const auto sequences = continues.defined() ? std::optional<at::Tensor>(continues) : std::nullopt;
  return Attention::apply(q, k, v, cu_seqlens, heads, scale, /*causal=*/true, window, /*softcap=*/0.0,
                          sequences, compute, sinks)[0];
}

}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, Autograd, m) {
  m.impl("varlen_attention", &rlt::attention_autograd);
  m.impl("add_layer_norm", &rlt::add_layer_norm_autograd);
  m.impl("segment_mean", &rlt::segment_mean_autograd);
}
