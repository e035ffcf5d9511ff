// Attention composed of libtorch's products, one sequence and one block of queries at a time, so that memory
// does not grow with the square of the length.
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "cuda/ops/attention.h"

namespace rlt::cuda {
namespace {

constexpr int64_t kScores = int64_t{1} << 23;  // limit per block, unless it has only one row

// Keys or values of a sequence, starting at key `from`, as [kv_heads, keys, d].
at::Tensor heads_of(const AttentionRule& r, const at::Tensor& t, int64_t from, int64_t keys) {
  return t.narrow(0, from, keys).reshape({keys, r.kv_heads, r.head_dim}).transpose(0, 1);
}

at::Tensor rows_of(const AttentionRule& r, const at::Tensor& heads) {
  return heads.transpose(0, 1).reshape({heads.size(1), r.kv_heads * r.head_dim});
}

// Rows of all heads as [kv_heads, group · rows, d]; spread_heads is the inverse.
at::Tensor gather_heads(const AttentionRule& r, const at::Tensor& t, int64_t row, int64_t rows) {
  return t.narrow(0, row, rows)
      .reshape({rows, r.kv_heads, r.heads / r.kv_heads, r.head_dim})
      .permute({1, 2, 0, 3})
      .reshape({r.kv_heads, -1, r.head_dim});
}

at::Tensor spread_heads(const AttentionRule& r, const at::Tensor& t, int64_t rows) {
  return t.view({r.kv_heads, r.heads / r.kv_heads, rows, r.head_dim})
      .permute({2, 0, 1, 3})
      .reshape({rows, r.heads * r.head_dim});
}

int64_t block_rows(const AttentionRule& r, const Span& s) {
  return std::clamp<int64_t>(kScores / (r.heads * s.keys()), 1, s.length);
}

// The capped scores of rows [begin, begin + rows) of a span, -∞ for hidden keys, and the q they come from.
struct Block {
  at::Tensor q, scores;  // [kv_heads, group · rows, d], [kv_heads, group, rows, keys]
};

Block score(const AttentionRule& r, const Span& s, const at::Tensor& q, const at::Tensor& k, int64_t begin,
            int64_t rows) {
  Block b{gather_heads(r, q, s.first + begin, rows), {}};
  b.scores = at::bmm(b.q, k.transpose(1, 2)).mul_(r.scale).view({r.kv_heads, -1, rows, s.keys()});
  if (r.softcap > 0) b.scores.div_(r.softcap).tanh_().mul_(r.softcap);
  if (!r.causal && r.window == 0) return b;
  const auto options = q.options().dtype(at::kLong);
  const at::Tensor row = at::arange(rows, options).add_(s.before_length + begin).unsqueeze(1);
  const at::Tensor ahead = at::arange(s.keys(), options).sub(row);  // distance from a query forward to a key
  at::Tensor hidden = r.causal ? ahead.gt(0) : ahead.gt(r.window - 1);
  if (r.window > 0) hidden = hidden.logical_or(ahead.lt(1 - r.window));
  b.scores.masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  return b;
}

}  // namespace

Forward composed_attention(const AttentionRule& r, const Layout& layout, const at::Tensor& q,
                           const at::Tensor& keys, const at::Tensor& values) {
  at::Tensor out = at::empty(q.sizes(), q.options()), lse = at::empty({r.heads, q.size(0)}, q.options());
  int64_t from = 0;
  for (const Span& s : layout.spans) {
    const at::Tensor k = heads_of(r, keys, from, s.keys()), v = heads_of(r, values, from, s.keys());
    for (int64_t begin = 0; begin < s.length; begin += block_rows(r, s)) {
      const int64_t rows = std::min(block_rows(r, s), s.length - begin);
      const at::Tensor scores = score(r, s, q, k, begin, rows).scores, sums = scores.logsumexp(-1);
      const at::Tensor probs = scores.sub(sums.unsqueeze(-1)).exp_().view({r.kv_heads, -1, s.keys()});
      out.narrow(0, s.first + begin, rows).copy_(spread_heads(r, at::bmm(probs, v), rows));
      lse.narrow(1, s.first + begin, rows).copy_(sums.view({r.heads, rows}));
    }
    from += s.keys();
  }
  return {out, lse};
}

Backward composed_attention_backward(const AttentionRule& r, const Layout& layout, const at::Tensor& grad,
                                     const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                     const at::Tensor& out, const at::Tensor& lse) {
  at::Tensor grad_q = at::empty(q.sizes(), q.options()), grad_keys = at::empty(keys.sizes(), keys.options()),
             grad_values = at::empty(values.sizes(), values.options());
  int64_t from = 0;
  for (const Span& s : layout.spans) {
    const at::Tensor k = heads_of(r, keys, from, s.keys()), v = heads_of(r, values, from, s.keys());
    at::Tensor key_sum = at::zeros_like(k), value_sum = at::zeros_like(v);
    for (int64_t begin = 0; begin < s.length; begin += block_rows(r, s)) {
      const int64_t rows = std::min(block_rows(r, s), s.length - begin), row = s.first + begin;
      const Block b = score(r, s, q, k, begin, rows);
      const at::Tensor sums = lse.narrow(1, row, rows).reshape({r.kv_heads, -1, rows, 1});
      const at::Tensor probs = b.scores.sub(sums).exp_().view({r.kv_heads, -1, s.keys()});
      const at::Tensor g = gather_heads(r, grad, row, rows), o = gather_heads(r, out, row, rows);
      value_sum.add_(at::bmm(probs.transpose(1, 2), g));
      at::Tensor d = at::bmm(g, v.transpose(1, 2)).sub_(g.mul(o).sum(-1, true)).mul_(probs).mul_(r.scale);
      if (r.softcap > 0) {
        // Where a key is hidden, d is 0, but the derivative of the cap at -∞ would make it NaN.
        const at::Tensor capped = b.scores.div(r.softcap).clamp_(-1, 1).view(d.sizes());
        d.mul_(capped.square_().neg_().add_(1));
      }
      key_sum.add_(at::bmm(d.transpose(1, 2), b.q));
      grad_q.narrow(0, row, rows).copy_(spread_heads(r, at::bmm(d, k), rows));
    }
    grad_keys.narrow(0, from, s.keys()).copy_(rows_of(r, key_sum));
    grad_values.narrow(0, from, s.keys()).copy_(rows_of(r, value_sum));
    from += s.keys();
  }
  return {grad_q, grad_keys, grad_values};
}

}  // namespace rlt::cuda
