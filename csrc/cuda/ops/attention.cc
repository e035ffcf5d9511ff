// Attention within each sequence of a packed batch: by libtorch's fused kernels if they support the rule,
// else composed of libtorch's products.
#include "cuda/ops/attention.h"

#include <torch/library.h>

#include <optional>

#include "ops/packed.h"

namespace rlt {
namespace {

using cuda::AttentionRule;
using cuda::Layout;
using cuda::Span;

AttentionRule check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                    double scale, bool causal, int64_t window, double softcap,
                    std::optional<at::ScalarType> compute) {
  TORCH_CHECK(q.dim() == 2 && k.dim() == 2 && k.sizes() == v.sizes() && k.size(0) == q.size(0) && heads > 0 &&
                  q.size(1) > 0 && q.size(1) % heads == 0,
              "varlen_attention: q ", q.sizes(), ", k ", k.sizes(), " and v ", v.sizes(), " do not fit ",
              heads, " heads");
  for (const at::Tensor& t : {q, k, v}) {
    TORCH_CHECK(t.scalar_type() == at::kFloat || t.scalar_type() == compute,
                "varlen_attention: q, k and v must be float32 or of the type that is computed in, got ",
                t.scalar_type());
  }
  const int64_t d = q.size(1) / heads, kv = k.size(1) / d;
  TORCH_CHECK(kv > 0 && k.size(1) % d == 0 && heads % kv == 0, "varlen_attention: k ", k.sizes(),
              " does not divide among ", heads, " heads of ", d);
  TORCH_CHECK(window >= 0 && softcap >= 0, "varlen_attention: window ", window, " and softcap ", softcap,
              " must not be negative");
  return {heads, kv, d, scale, causal, window, softcap, compute.value_or(at::kFloat)};
}

// Spans of all non-empty sequences.
std::vector<Span> spans_of(bool causal, const at::Tensor& cu_seqlens,
                           const std::optional<at::Tensor>& continues, int64_t rows) {
  TORCH_CHECK(causal || !continues.has_value() || !continues->defined(),
              "varlen_attention: only causal sequences continue others");
  const int32_t* cu = checked_cu_seqlens(cu_seqlens, rows);
  const int64_t n = cu_seqlens.numel() - 1;
  const int32_t* of = checked_continues(continues, n);
  std::vector<Span> spans;
  for (int64_t s = 0; s < n; ++s) {
    if (cu[s + 1] == cu[s]) continue;
    Span span{cu[s], cu[s + 1] - cu[s], 0, 0};
    if (of != nullptr && of[s] >= 0) {
      span.before = cu[of[s]];
      span.before_length = cu[of[s] + 1] - cu[of[s]];
    }
    spans.push_back(span);
  }
  return spans;
}

// An implementation and its backward.
struct Way {
  decltype(cuda::composed_attention)* forward;
  decltype(cuda::composed_attention_backward)* backward;
};

// Forward and backward must choose alike. Sets the type and the window of rule to those of the
// implementation.
Way choose(AttentionRule& rule, const Layout& layout) {
  if (rule.window >= layout.longest_keys) rule.window = 0;
  if (cuda::flash_fits(rule, layout)) return {cuda::flash_attention, cuda::flash_attention_backward};
  rule.compute = at::kFloat;
  if (cuda::efficient_fits(rule, layout))
    return {cuda::efficient_attention, cuda::efficient_attention_backward};
  return {cuda::composed_attention, cuda::composed_attention_backward};
}

std::tuple<at::Tensor, at::Tensor> attention_cuda(const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, const at::Tensor& cu_seqlens,
                                                  int64_t heads, double scale, bool causal, int64_t window,
                                                  double softcap, const std::optional<at::Tensor>& continues,
                                                  std::optional<at::ScalarType> compute) {
  AttentionRule rule = check(q, k, v, heads, scale, causal, window, softcap, compute);
  const auto layout = layout_of(spans_of(causal, cu_seqlens, continues, q.size(0)), q.device());
  const Way way = choose(rule, *layout);
  return way.forward(rule, *layout, q.to(rule.compute), seen(*layout, k.to(rule.compute)),
                     seen(*layout, v.to(rule.compute)));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cuda(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t heads, double scale,
    bool causal, int64_t window, double softcap, const std::optional<at::Tensor>& continues,
    std::optional<at::ScalarType> compute) {
  AttentionRule rule = check(q, k, v, heads, scale, causal, window, softcap, compute);
  TORCH_CHECK(grad.sizes() == q.sizes() && out.sizes() == q.sizes() && lse.dim() == 2 &&
                  lse.size(0) == heads && lse.size(1) == q.size(0),
              "varlen_attention_backward: grad ", grad.sizes(), ", out ", out.sizes(), " and lse ",
              lse.sizes(), " do not fit q ", q.sizes());
  const auto layout = layout_of(spans_of(causal, cu_seqlens, continues, q.size(0)), q.device());
  const Way way = choose(rule, *layout);
  const auto [grad_q, grad_keys, grad_values] =
      way.backward(rule, *layout, grad, q.to(rule.compute), seen(*layout, k.to(rule.compute)),
                   seen(*layout, v.to(rule.compute)), out.to(rule.compute), lse);
  return {grad_q.to(at::kFloat), seen_backward(*layout, grad_keys), seen_backward(*layout, grad_values)};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CUDA, m) {
  m.impl("varlen_attention", &rlt::attention_cuda);
  m.impl("varlen_attention_backward", &rlt::attention_backward_cuda);
}
