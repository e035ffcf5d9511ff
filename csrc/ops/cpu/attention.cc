// Attention inside each sequence of a packed batch, parallel over (family, head); a family is a sequence and
// those that continue it, which are alone in adding to the gradients of its keys. A block of queries is
// scored against all the keys it sees, and against no others; nothing of a length squared is ever kept:
// backward recomputes the probabilities from the saved log denominators (Dao 2022, §3.1).
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <vector>

#include "ops/cpu/block_rows.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/rows.h"
#include "ops/packed.h"

namespace rlt {

const int32_t* checked_cu_seqlens(const at::Tensor& cu_seqlens, int64_t rows) {
  TORCH_CHECK(cu_seqlens.scalar_type() == at::kInt && cu_seqlens.dim() == 1 && cu_seqlens.numel() >= 1 &&
                  cu_seqlens.is_contiguous() && cu_seqlens.device().is_cpu(),
              "cu_seqlens must be a dense int32 vector of at least one element, got ",
              cu_seqlens.scalar_type(), " ", cu_seqlens.sizes());
  const int32_t* cu = cu_seqlens.const_data_ptr<int32_t>();
  const int64_t sequences = cu_seqlens.numel() - 1;
  TORCH_CHECK(cu[0] == 0 && cu[sequences] == rows, "cu_seqlens must run from 0 to ", rows, ", runs from ",
              cu[0], " to ", cu[sequences]);
  for (int64_t s = 0; s < sequences; ++s) {
    TORCH_CHECK(cu[s] <= cu[s + 1], "cu_seqlens falls from ", cu[s], " to ", cu[s + 1], " at sequence ", s);
  }
  return cu;
}

const int32_t* checked_continues(const std::optional<at::Tensor>& continues, int64_t n) {
  if (!continues.has_value() || !continues->defined()) return nullptr;
  TORCH_CHECK(continues->scalar_type() == at::kInt && continues->dim() == 1 && continues->numel() == n &&
                  continues->is_contiguous() && continues->device().is_cpu(),
              "continues must be a dense int32 vector of ", n, " elements, got ", continues->scalar_type(),
              " ", continues->sizes());
  const int32_t* of = continues->const_data_ptr<int32_t>();
  for (int64_t s = 0; s < n; ++s) {
    TORCH_CHECK(of[s] == -1 || (s > 0 && (of[s] == of[s - 1] || (of[s] == s - 1 && of[s - 1] == -1))),
                "continues: sequence ", s, " cannot continue ", of[s]);
  }
  return of;
}

namespace {

struct Shape {
  int64_t rows, heads, kv_heads, head_dim, sequences;
  const int32_t *cu, *continues;
};

// The rows of a sequence, and those of the one that it continues.
struct Span {
  int64_t first, length, before, before_length;
};

Span span_of(const Shape& s, int64_t sequence) {
  const auto rows = [&](int64_t i) { return s.cu[i + 1] - s.cu[i]; };
  const int64_t before = s.continues == nullptr ? -1 : s.continues[sequence];
  if (before < 0) return {s.cu[sequence], rows(sequence), 0, 0};
  return {s.cu[sequence], rows(sequence), s.cu[before], rows(before)};
}

// What a query may see, and how its scores become probabilities.
struct Rule {
  bool causal;
  int64_t window;
  float scale, softcap;
};

bool dense_rows(const at::Tensor& t) {
  return (t.size(1) == 1 || t.stride(1) == 1) && (t.size(0) < 2 || t.stride(0) >= t.size(1));
}

Shape check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens,
            const std::optional<at::Tensor>& continues, int64_t heads, const Rule& rule) {
  TORCH_CHECK(q.dim() == 2 && k.dim() == 2 && k.size(0) == q.size(0) && v.sizes() == k.sizes() && heads > 0 &&
                  q.size(1) > 0 && q.size(1) % heads == 0 && k.size(1) > 0 &&
                  k.size(1) % (q.size(1) / heads) == 0 && q.size(1) % k.size(1) == 0,
              "varlen_attention: q ", q.sizes(), ", k ", k.sizes(), " and v ", v.sizes(), " do not fit ",
              heads, " heads");
  TORCH_CHECK(q.scalar_type() == at::kFloat && k.scalar_type() == at::kFloat && v.scalar_type() == at::kFloat,
              "varlen_attention: q, k and v must be float32");
  TORCH_CHECK(dense_rows(q) && dense_rows(k) && dense_rows(v),
              "varlen_attention: the rows of q, k and v must be dense");
  TORCH_CHECK(rule.scale >= 0 && rule.softcap >= 0,
              "varlen_attention: scale and softcap must not be negative, got ", rule.scale, " and ",
              rule.softcap);
  TORCH_CHECK(rule.window >= 0, "varlen_attention: a window of ", rule.window);
  TORCH_CHECK(rule.causal || !continues.has_value() || !continues->defined(),
              "varlen_attention: only causal sequences continue others");
  const int64_t head_dim = q.size(1) / heads, sequences = cu_seqlens.numel() - 1;
  return {q.size(0),
          heads,
          k.size(1) / head_dim,
          head_dim,
          sequences,
          checked_cu_seqlens(cu_seqlens, q.size(0)),
          checked_continues(continues, sequences)};
}

// One head of a packed tensor at a sequence's first row.
Matrix head_of(const at::Tensor& t, int64_t first, int64_t head, int64_t head_dim) {
  return {t.const_data_ptr<float>() + first * t.stride(0) + head * head_dim,
          std::max(t.stride(0), t.size(1))};
}
float* writable(const Matrix& m) { return const_cast<float*>(m.data); }

// Queries that are scored together. A block that does not see all keys computes some of its square in vain.
int64_t block_rows(const Rule& rule) { return rule.causal || rule.window > 0 ? 64 : 512; }

// A block of queries, counted from the sequence's first row, and the keys that any of them sees, counted from
// the first row of what it continues.
struct Block {
  int64_t begin, end, first_key, last_key;

  int64_t rows() const { return end - begin; }
  int64_t keys() const { return last_key - first_key; }
  // A multiple of 16 floats, so that every row of scratch begins a cache line.
  int64_t stride() const { return (keys() + 15) / 16 * 16; }
};

Block block_at(const Rule& rule, const Span& s, int64_t begin) {
  const int64_t end = std::min(begin + block_rows(rule), s.length), before = s.before_length;
  if (rule.window == 0) return {begin, end, 0, before + (rule.causal ? end : s.length)};
  return {begin, end, std::max<int64_t>(0, before + begin - rule.window + 1),
          before + (rule.causal ? end : std::min(end + rule.window - 1, s.length))};
}

// Keys of a block that lie together: count of them from a row on, scored from a column on.
struct Piece {
  int64_t row, column, count;
};

std::array<Piece, 2> pieces(const Span& s, const Block& b) {
  const int64_t own = std::max(b.first_key, s.before_length);
  return {Piece{s.before + b.first_key, 0, std::max<int64_t>(0, s.before_length - b.first_key)},
          Piece{s.first + own - s.before_length, own - b.first_key, b.last_key - own}};
}

// The keys [from, to) of the block that its i-th query sees.
struct Seen {
  int64_t from, to;
};

Seen seen(const Rule& rule, const Span& s, const Block& b, int64_t i) {
  const int64_t query = s.before_length + b.begin + i;
  int64_t from = b.first_key, to = rule.causal ? query + 1 : b.last_key;
  if (rule.window > 0) {
    from = std::max(from, query - rule.window + 1);
    to = std::min(to, query + rule.window);
  }
  return {from - b.first_key, to - b.first_key};
}

void hide_rest(float* row, const Seen& s, int64_t keys) {
  std::fill(row, row + s.from, 0.0f);
  std::fill(row + s.to, row + keys, 0.0f);
}

// Calls body(span, head, scratch) for each of n_heads heads of each sequence, those of a family in their
// order, scratch being n_scratch matrices of the calling thread, each as large as a block's scores.
template <typename Body>
void for_each_head(const Shape& s, int64_t n_heads, const Rule& rule, int n_scratch, const Body& body) {
  std::vector<int64_t> families;  // the first sequence of each, and the end of the last
  for (int64_t i = 0; i < s.sequences; ++i) {
    if (s.continues == nullptr || s.continues[i] < 0) families.push_back(i);
  }
  const int64_t n = static_cast<int64_t>(families.size());
  families.push_back(s.sequences);
  at::parallel_for(0, n * n_heads, 1, [&](int64_t begin, int64_t end) {
    at::Tensor scratch;
    for (int64_t task = begin; task < end; ++task) {
      const size_t family = static_cast<size_t>(task / n_heads);
      for (int64_t sequence = families[family]; sequence < families[family + 1]; ++sequence) {
        const Span span = span_of(s, sequence);
        if (span.length == 0) continue;
        const int64_t keys = span.before_length + span.length;
        const int64_t need = n_scratch * std::min(span.length, block_rows(rule)) * ((keys + 15) / 16 * 16);
        if (!scratch.defined() || scratch.numel() < need) scratch = at::empty({need}, at::kFloat);
        body(span, task % n_heads, scratch.mutable_data_ptr<float>());
      }
    }
  });
}

std::tuple<at::Tensor, at::Tensor> attention_cpu(const at::Tensor& q, const at::Tensor& k,
                                                 const at::Tensor& v, const at::Tensor& cu_seqlens,
                                                 int64_t heads, double scale, bool causal, int64_t window,
                                                 double softcap, const std::optional<at::Tensor>& continues) {
  const Rule rule{causal, window, static_cast<float>(scale), static_cast<float>(softcap)};
  const Shape s = check(q, k, v, cu_seqlens, continues, heads, rule);
  at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor lse = at::empty({heads, s.rows}, q.options());
  const int64_t d = s.head_dim;
  const float after_cap = rule.softcap > 0 ? 1 : rule.scale;
  for_each_head(s, s.heads, rule, 1, [&](const Span& span, int64_t head, float* scores) {
    const int64_t kv = head / (s.heads / s.kv_heads);
    float* sums = lse.mutable_data_ptr<float>() + head * s.rows + span.first;
    for (int64_t at = 0; at < span.length; at += block_rows(rule)) {
      const Block b = block_at(rule, span, at);
      const Matrix qm = head_of(q, span.first + b.begin, head, d),
                   om = head_of(out, span.first + b.begin, head, d);
      const int64_t rows = b.rows(), keys = b.keys(), stride = b.stride();
      for (const Piece& p : pieces(span, b)) {
        if (p.count == 0) continue;
        gemm('N', 'T', rows, p.count, d, qm, head_of(k, p.row, kv, d), scores + p.column, stride);
      }
      for (int64_t i = 0; i < rows; ++i) {
        float* row = scores + i * stride;
        const Seen r = seen(rule, span, b, i);
        if (rule.softcap > 0) softcap_row(row + r.from, r.to - r.from, rule.scale, rule.softcap);
        sums[b.begin + i] = softmax_row(row + r.from, r.to - r.from, after_cap);
        hide_rest(row, r, keys);
      }
      bool add = false;
      for (const Piece& p : pieces(span, b)) {
        if (p.count == 0) continue;
        gemm('N', 'N', rows, d, p.count, {scores + p.column, stride}, head_of(v, p.row, kv, d), writable(om),
             om.stride, add);
        add = true;
      }
    }
  });
  return {out, lse};
}

// A group's query heads add to the gradients of one key head, so a task is a key head with its group.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t heads, double scale,
    bool causal, int64_t window, double softcap, const std::optional<at::Tensor>& continues) {
  const Rule rule{causal, window, static_cast<float>(scale), static_cast<float>(softcap)};
  const Shape s = check(q, k, v, cu_seqlens, continues, heads, rule);
  TORCH_CHECK(grad.sizes() == q.sizes() && grad.is_contiguous() && out.sizes() == q.sizes() &&
                  out.is_contiguous() && lse.numel() == heads * s.rows && lse.is_contiguous(),
              "varlen_attention_backward: grad ", grad.sizes(), ", out ", out.sizes(), " and lse ",
              lse.sizes(), " do not fit q ", q.sizes(), ", or are not dense");
  at::Tensor grad_q = at::empty(q.sizes(), q.options()), grad_k = at::empty(k.sizes(), k.options()),
             grad_v = at::empty(v.sizes(), v.options());
  const int64_t d = s.head_dim;
  const int64_t group = s.heads / s.kv_heads;
  const float after_cap = rule.softcap > 0 ? 1 : rule.scale;
  const int n_scratch = rule.softcap > 0 ? 3 : 2;
  for_each_head(s, s.kv_heads, rule, n_scratch, [&](const Span& span, int64_t kv, float* probs) {
    for (const at::Tensor& t : {grad_k, grad_v}) {
      const Matrix m = head_of(t, span.first, kv, d);
      for (int64_t i = 0; i < span.length; ++i) std::fill_n(writable(m) + i * m.stride, d, 0.0f);
    }
    for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
      const float* sums = lse.const_data_ptr<float>() + head * s.rows + span.first;
      for (int64_t at = 0; at < span.length; at += block_rows(rule)) {
        const Block b = block_at(rule, span, at);
        const int64_t rows = b.rows(), keys = b.keys(), stride = b.stride();
        float *scores = probs + b.rows() * b.stride(), *capped = scores + b.rows() * b.stride();
        const int64_t row0 = span.first + b.begin;
        const Matrix qm = head_of(q, row0, head, d), gm = head_of(grad, row0, head, d),
                     om = head_of(out, row0, head, d), gq = head_of(grad_q, row0, head, d);
        for (const Piece& p : pieces(span, b)) {
          if (p.count == 0) continue;
          gemm('N', 'T', rows, p.count, d, qm, head_of(k, p.row, kv, d), probs + p.column, stride);
        }
        for (int64_t i = 0; i < rows; ++i) {
          float* row = probs + i * stride;
          const Seen r = seen(rule, span, b, i);
          if (rule.softcap > 0) {
            softcap_row(row + r.from, r.to - r.from, rule.scale, rule.softcap);
            std::copy(row + r.from, row + r.to, capped + i * stride + r.from);
          }
          exp_row(row + r.from, r.to - r.from, after_cap, sums[b.begin + i]);
          hide_rest(row, r, keys);
        }
        for (const Piece& p : pieces(span, b)) {
          if (p.count == 0) continue;
          const Matrix gv = head_of(grad_v, p.row, kv, d);
          gemm('T', 'N', p.count, d, rows, {probs + p.column, stride}, gm, writable(gv), gv.stride, true);
          gemm('N', 'T', rows, p.count, d, gm, head_of(v, p.row, kv, d), scores + p.column, stride);
        }
        for (int64_t i = 0; i < rows; ++i) {
          float* row = scores + i * stride;
          const Seen r = seen(rule, span, b, i);
          const float delta = dot_row(gm.data + i * gm.stride, om.data + i * om.stride, d);
          softmax_backward_row(row + r.from, probs + i * stride + r.from, r.to - r.from, delta, rule.scale);
          if (rule.softcap > 0) {
            softcap_backward_row(row + r.from, capped + i * stride + r.from, r.to - r.from, rule.softcap);
          }
          hide_rest(row, r, keys);
        }
        bool add = false;
        for (const Piece& p : pieces(span, b)) {
          if (p.count == 0) continue;
          const Matrix gk = head_of(grad_k, p.row, kv, d);
          gemm('N', 'N', rows, d, p.count, {scores + p.column, stride}, head_of(k, p.row, kv, d),
               writable(gq), gq.stride, add);
          gemm('T', 'N', p.count, d, rows, {scores + p.column, stride}, qm, writable(gk), gk.stride, true);
          add = true;
        }
      }
    }
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CPU, m) {
  m.impl("varlen_attention", &rlt::attention_cpu);
  m.impl("varlen_attention_backward", &rlt::attention_backward_cpu);
}
