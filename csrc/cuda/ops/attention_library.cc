// Attention by libtorch's fused kernels, all sequences at once.
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "cuda/ops/attention.h"
#include "cuda/ops/range.h"
#include "ops/ordered.h"

namespace rlt::cuda {
namespace {

// The limit of a CUDA grid dimension.
constexpr size_t kMaxSequences = 65535;
constexpr int64_t kMaxHeadDim = 256;

// [rows, heads, d] in `type`.
at::Tensor heads_of(const at::Tensor& t, int64_t heads, at::ScalarType type) {
  return t.to(type).contiguous().view({t.size(0), heads, -1});
}

// Number of keys visible before and after a query's own; nullopt means all.
struct Window {
  std::optional<int64_t> left, right;
};

Window window_of(const AttentionRule& r) {
  if (r.window == 0) return {};
  return {r.window - 1, r.causal ? 0 : r.window - 1};
}

// With one query per sequence libtorch would use another kernel, whose lse may not have the layout that
// backward reads.
int64_t queries(const Layout& l) { return std::max<int64_t>(l.longest, 2); }

// Repeats each key or value head for all its query heads: [1, keys, heads, d].
at::Tensor repeated(const AttentionRule& r, const at::Tensor& t) {
  const int64_t n = t.size(0), group = r.heads / r.kv_heads;
  return t.contiguous()
      .view({n, r.kv_heads, 1, r.head_dim})
      .expand({n, r.kv_heads, group, r.head_dim})
      .reshape({1, n, r.heads, r.head_dim});
}

// The backward of repeated: sums over the query heads.
at::Tensor repeated_backward(const AttentionRule& r, const at::Tensor& grad) {
  const int64_t n = grad.size(1);
  return grad.view({n, r.kv_heads, r.heads / r.kv_heads, r.head_dim})
      .sum(2)
      .view({n, r.kv_heads * r.head_dim});
}

// Rows as a batch of one: [1, rows, heads, d].
at::Tensor batch_of_one(const AttentionRule& r, const at::Tensor& t) {
  return t.contiguous().view({1, t.size(0), r.heads, r.head_dim});
}

// AttentionKernel::CustomMaskType: 0 none; 1 causal, first query aligned with first key; 2 causal, last query
// aligned with last key.
int64_t mask_of(const AttentionRule& r, const Layout& l) { return !r.causal ? 0 : l.continued() ? 2 : 1; }

// lse [heads, rows] from [sequences, heads, padded()]; padded is the inverse. Padding is ∞, which makes its
// probabilities 0.
at::Tensor unpadded(const AttentionRule& r, const Layout& l, const at::Tensor& lse) {
  TORCH_INTERNAL_ASSERT(lse.size(2) == l.padded());
  return lse.transpose(0, 1).reshape({r.heads, -1}).index_select(1, l.padded_row);
}

at::Tensor padded(const AttentionRule& r, const Layout& l, const at::Tensor& lse) {
  const auto n = static_cast<int64_t>(l.spans.size());
  return at::full({r.heads, n * l.padded()}, std::numeric_limits<float>::infinity(), lse.options())
      .index_copy_(1, l.padded_row.to(at::kLong), lse)
      .view({r.heads, n, l.padded()})
      .transpose(0, 1)
      .contiguous();
}

std::optional<int64_t> efficient_window(const AttentionRule& r) {
  return r.window > 0 ? std::optional<int64_t>(r.window) : std::nullopt;
}

}  // namespace

bool flash_fits(const AttentionRule& r, const Layout& l) {
  return l.device.is_cuda() && (r.compute == at::kBFloat16 || r.compute == at::kHalf) && r.softcap == 0 &&
         r.head_dim % 8 == 0 && r.head_dim <= kMaxHeadDim && !l.spans.empty() &&
         l.spans.size() <= kMaxSequences;
}

Forward flash_attention(const AttentionRule& r, const Layout& l, const at::Tensor& q, const at::Tensor& keys,
                        const at::Tensor& values) {
  const Window window = window_of(r);
  const auto found = at::_flash_attention_forward(
      heads_of(q, r.heads, r.compute), heads_of(keys, r.kv_heads, r.compute),
      heads_of(values, r.kv_heads, r.compute), l.rows_at, l.keys_at, queries(l), l.longest_keys,
      /*dropout_p=*/0, r.causal, /*return_debug_mask=*/false, r.scale, window.left, window.right);
  return {std::get<0>(found).to(at::kFloat).view(q.sizes()), std::get<1>(found)};
}

Backward flash_attention_backward(const AttentionRule& r, const Layout& l, const at::Tensor& grad,
                                  const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                  const at::Tensor& out, const at::Tensor& lse) {
  const Window window = window_of(r);
  const at::Tensor unused = at::empty({0}, q.options().dtype(at::kLong));  // the dropout state
  const bool half = r.compute == at::kHalf;
  const at::Tensor greatest = half ? greatest_of(grad) : at::Tensor();
  const auto whole = [&](const at::Tensor& t, const at::Tensor& like) {
    return half ? t.reshape(like.sizes()).to(at::kFloat).mul_(greatest) : t.reshape(like.sizes());
  };
  const Ordered ordered;
  const auto [grad_q, grad_keys, grad_values] = at::_flash_attention_backward(
      heads_of(half ? grad.div(greatest) : grad, r.heads, r.compute), heads_of(q, r.heads, r.compute),
      heads_of(keys, r.kv_heads, r.compute), heads_of(values, r.kv_heads, r.compute),
      heads_of(out, r.heads, r.compute), lse, l.rows_at, l.keys_at, queries(l), l.longest_keys,
      /*dropout_p=*/0, r.causal, unused, unused, r.scale, window.left, window.right);
  return {whole(grad_q, q), whole(grad_keys, keys), whole(grad_values, values)};
}

// The kernels support windows only together with causality, and their backward is wrong for windows if
// queries and keys begin at different positions.
bool efficient_fits(const AttentionRule& r, const Layout& l) {
  return l.device.is_cuda() && r.softcap == 0 && r.head_dim % 4 == 0 && r.head_dim <= kMaxHeadDim &&
         (r.window == 0 || (r.causal && !l.continued())) && !l.spans.empty() &&
         l.spans.size() <= kMaxSequences;
}

Forward efficient_attention(const AttentionRule& r, const Layout& l, const at::Tensor& q,
                            const at::Tensor& keys, const at::Tensor& values) {
  const auto found = at::_efficient_attention_forward(
      batch_of_one(r, q), repeated(r, keys), repeated(r, values), /*bias=*/{}, l.rows_at, l.keys_at,
      l.longest, l.longest_keys, /*dropout_p=*/0, mask_of(r, l), /*compute_log_sumexp=*/true, r.scale,
      /*seqlen_k=*/{}, efficient_window(r));
  return {std::get<0>(found).reshape(q.sizes()), unpadded(r, l, std::get<1>(found))};
}

Backward efficient_attention_backward(const AttentionRule& r, const Layout& l, const at::Tensor& grad,
                                      const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                      const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor unused = at::empty({}, at::kLong);  // the dropout state
  // If keys are not split, no two thread blocks add to the same gradient.
  const auto found = at::_efficient_attention_backward(
      batch_of_one(r, grad), batch_of_one(r, q), repeated(r, keys), repeated(r, values), /*bias=*/{},
      batch_of_one(r, out), l.rows_at, l.keys_at, l.longest, l.longest_keys, padded(r, l, lse),
      /*dropout_p=*/0, unused, unused, mask_of(r, l), /*bias_requires_grad=*/false, r.scale,
      /*num_splits_key=*/1, efficient_window(r));
  return {std::get<0>(found).reshape(q.sizes()), repeated_backward(r, std::get<1>(found)),
          repeated_backward(r, std::get<2>(found))};
}

}  // namespace rlt::cuda
