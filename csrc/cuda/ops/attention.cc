// Attention inside each sequence of a packed batch, of libtorch's products: a block of a sequence's queries
// at a time, so that memory does not grow with the square of a sequence's length. Sequences follow each
// other, so sums that several of them add to have a fixed order.
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/packed.h"

namespace rlt {
namespace {

constexpr int64_t kScores = int64_t{1} << 23;  // of a block, at most, where it has more than one row

struct Rule {
  int64_t heads, kv_heads, head_dim;
  double scale;
  bool causal;
  int64_t window;
  double softcap;
};

// A sequence, and the beginning that it goes on with.
struct Span {
  int64_t first, length, before, before_length;
  int64_t keys() const { return before_length + length; }
};

Rule check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads, double scale,
           bool causal, int64_t window, double softcap) {
  TORCH_CHECK(q.dim() == 2 && k.dim() == 2 && k.sizes() == v.sizes() && k.size(0) == q.size(0) && heads > 0 &&
                  q.size(1) > 0 && q.size(1) % heads == 0,
              "varlen_attention: q ", q.sizes(), ", k ", k.sizes(), " and v ", v.sizes(), " do not fit ",
              heads, " heads");
  const int64_t d = q.size(1) / heads, kv = k.size(1) / d;
  TORCH_CHECK(kv > 0 && k.size(1) % d == 0 && heads % kv == 0, "varlen_attention: k ", k.sizes(),
              " does not divide among ", heads, " heads of ", d);
  TORCH_CHECK(window >= 0 && softcap >= 0, "varlen_attention: window ", window, " and softcap ", softcap,
              " must not be negative");
  return {heads, kv, d, scale, causal, window, softcap};
}

std::vector<Span> spans_of(const Rule& rule, const at::Tensor& cu_seqlens,
                           const std::optional<at::Tensor>& continues, int64_t rows) {
  TORCH_CHECK(rule.causal || !continues.has_value() || !continues->defined(),
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

// Keys or values that a span sees, [kv_heads, keys, d].
at::Tensor seen_by(const Rule& r, const Span& s, const at::Tensor& t) {
  const at::Tensor own = t.narrow(0, s.first, s.length);
  const at::Tensor all = s.before_length > 0 ? at::cat({t.narrow(0, s.before, s.before_length), own}) : own;
  return all.reshape({s.keys(), r.kv_heads, r.head_dim}).transpose(0, 1);
}

// Rows of all heads as [kv_heads, group · rows, d], and back.
at::Tensor gather_heads(const Rule& r, const at::Tensor& t, int64_t row, int64_t rows) {
  return t.narrow(0, row, rows)
      .reshape({rows, r.kv_heads, r.heads / r.kv_heads, r.head_dim})
      .permute({1, 2, 0, 3})
      .reshape({r.kv_heads, -1, r.head_dim});
}

at::Tensor spread_heads(const Rule& r, const at::Tensor& t, int64_t rows) {
  return t.view({r.kv_heads, r.heads / r.kv_heads, rows, r.head_dim})
      .permute({2, 0, 1, 3})
      .reshape({rows, r.heads * r.head_dim});
}

int64_t block_rows(const Rule& r, const Span& s) {
  return std::clamp<int64_t>(kScores / (r.heads * s.keys()), 1, s.length);
}

// The scores of rows [begin, begin + rows) of a span, capped, those that are not seen -∞; and q as it was
// used.
struct Block {
  at::Tensor q, scores;  // [kv_heads, group · rows, d], [kv_heads, group, rows, keys]
};

Block score(const Rule& r, const Span& s, const at::Tensor& q, const at::Tensor& k, int64_t begin,
            int64_t rows) {
  Block b{gather_heads(r, q, s.first + begin, rows), {}};
  b.scores = at::bmm(b.q, k.transpose(1, 2)).mul_(r.scale).view({r.kv_heads, -1, rows, s.keys()});
  if (r.softcap > 0) b.scores.div_(r.softcap).tanh_().mul_(r.softcap);
  if (!r.causal && r.window == 0) return b;
  const auto options = q.options().dtype(at::kLong);
  const at::Tensor row = at::arange(rows, options).add_(s.before_length + begin).unsqueeze(1);
  const at::Tensor ahead = at::arange(s.keys(), options).sub(row);  // how far a key is after its query
  at::Tensor hidden = r.causal ? ahead.gt(0) : ahead.gt(r.window - 1);
  if (r.window > 0) hidden = hidden.logical_or(ahead.lt(1 - r.window));
  b.scores.masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  return b;
}

std::tuple<at::Tensor, at::Tensor> attention_cuda(const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, const at::Tensor& cu_seqlens,
                                                  int64_t heads, double scale, bool causal, int64_t window,
                                                  double softcap,
                                                  const std::optional<at::Tensor>& continues,
                                                  std::optional<at::ScalarType> /*compute*/) {
  const Rule r = check(q, k, v, heads, scale, causal, window, softcap);
  at::Tensor out = at::empty(q.sizes(), q.options()), lse = at::empty({heads, q.size(0)}, q.options());
  for (const Span& s : spans_of(r, cu_seqlens, continues, q.size(0))) {
    const at::Tensor keys = seen_by(r, s, k), values = seen_by(r, s, v);
    for (int64_t begin = 0; begin < s.length; begin += block_rows(r, s)) {
      const int64_t rows = std::min(block_rows(r, s), s.length - begin);
      const at::Tensor scores = score(r, s, q, keys, begin, rows).scores, sums = scores.logsumexp(-1);
      const at::Tensor probs = scores.sub(sums.unsqueeze(-1)).exp_().view({r.kv_heads, -1, s.keys()});
      out.narrow(0, s.first + begin, rows).copy_(spread_heads(r, at::bmm(probs, values), rows));
      lse.narrow(1, s.first + begin, rows).copy_(sums.view({heads, rows}));
    }
  }
  return {out, lse};
}

// Adds what a span's keys gained, [kv_heads, keys, d], to the rows of its beginning and its own.
void add_keys(const Rule& r, const Span& s, const at::Tensor& gained, const at::Tensor& into) {
  const at::Tensor rows = gained.transpose(0, 1).reshape({s.keys(), r.kv_heads * r.head_dim});
  if (s.before_length > 0) into.narrow(0, s.before, s.before_length).add_(rows.narrow(0, 0, s.before_length));
  into.narrow(0, s.first, s.length).add_(rows.narrow(0, s.before_length, s.length));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cuda(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t heads, double scale,
    bool causal, int64_t window, double softcap, const std::optional<at::Tensor>& continues,
    std::optional<at::ScalarType> /*compute*/) {
  const Rule r = check(q, k, v, heads, scale, causal, window, softcap);
  at::Tensor grad_q = at::empty(q.sizes(), q.options()), grad_k = at::zeros_like(k),
             grad_v = at::zeros_like(v);
  for (const Span& s : spans_of(r, cu_seqlens, continues, q.size(0))) {
    const at::Tensor keys = seen_by(r, s, k), values = seen_by(r, s, v);
    at::Tensor key_sum = at::zeros_like(keys), value_sum = at::zeros_like(values);
    for (int64_t begin = 0; begin < s.length; begin += block_rows(r, s)) {
      const int64_t rows = std::min(block_rows(r, s), s.length - begin), row = s.first + begin;
      const Block b = score(r, s, q, keys, begin, rows);
      const at::Tensor sums = lse.narrow(1, row, rows).reshape({r.kv_heads, -1, rows, 1});
      const at::Tensor probs = b.scores.sub(sums).exp_().view({r.kv_heads, -1, s.keys()});
      const at::Tensor g = gather_heads(r, grad, row, rows), o = gather_heads(r, out, row, rows);
      value_sum.add_(at::bmm(probs.transpose(1, 2), g));
      at::Tensor d =
          at::bmm(g, values.transpose(1, 2)).sub_(g.mul(o).sum(-1, true)).mul_(probs).mul_(r.scale);
      if (r.softcap > 0) {
        // Where a key is hidden, d is 0 and the cap's slope of -∞ would make it NaN.
        const at::Tensor capped = b.scores.div(r.softcap).clamp_(-1, 1).view(d.sizes());
        d.mul_(capped.square_().neg_().add_(1));
      }
      key_sum.add_(at::bmm(d.transpose(1, 2), b.q));
      grad_q.narrow(0, row, rows).copy_(spread_heads(r, at::bmm(d, keys), rows));
    }
    add_keys(r, s, key_sum, grad_k);
    add_keys(r, s, value_sum, grad_v);
  }
  return {grad_q, grad_k, grad_v};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CUDA, m) {
  m.impl("varlen_attention", &rlt::attention_cuda);
  m.impl("varlen_attention_backward", &rlt::attention_backward_cuda);
}
