// Attention inside each sequence of a packed batch, parallel over (sequence, head), in backward over (family,
// key head): a family is a sequence and those that continue it, which are alone in adding to the gradients of
// its keys. Keys and values are packed once for all the queries that see them. A block of queries is scored
// against the keys it sees, in steps of a panel where its rows do not all see the same; nothing of a length
// squared is ever kept: backward recomputes the probabilities from the saved log denominators (Dao 2022,
// §3.1). Where weights are of bfloat16 and the processor multiplies in it, so do both products: queries,
// keys, values, probabilities and their gradients are rounded, sums and softmax are of float32.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "kernels/parallel.h"
#include "kernels/tiles.h"
#include "ops/packed.h"

namespace rlt {
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
  bool pairs;  // products are of bfloat16
};

Rule rule_of(bool causal, int64_t window, double scale, double softcap,
             std::optional<at::ScalarType> compute) {
  return {causal, window, static_cast<float>(scale), static_cast<float>(softcap),
          compute == at::kBFloat16 && kernels().multiply_pairs};
}

// Keys that begin a panel, and where products are of bfloat16 a step of one, too.
int64_t key_step(const Rule& rule) { return rule.pairs ? 2 * kStepWords : kPanel; }

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
// the first row of what it continues. first_key begins a panel.
struct Block {
  int64_t begin, end, first_key, last_key;

  int64_t rows() const { return end - begin; }
  int64_t keys() const { return last_key - first_key; }
  // A multiple of 16 floats, so that every row of scratch begins a cache line.
  int64_t stride() const { return (keys() + 15) / 16 * 16; }
};

int64_t panel_start(const Rule& rule, int64_t key) { return key / key_step(rule) * key_step(rule); }

Block block_at(const Rule& rule, const Span& s, int64_t begin) {
  const int64_t end = std::min(begin + block_rows(rule), s.length), before = s.before_length;
  if (rule.window == 0) return {begin, end, 0, before + (rule.causal ? end : s.length)};
  const int64_t first = std::max<int64_t>(0, before + begin - rule.window + 1);
  return {begin, end, first < before ? panel_start(rule, first) : before + panel_start(rule, first - before),
          before + (rule.causal ? end : std::min(end + rule.window - 1, s.length))};
}

// Floats that op(x) [k, n] takes, and x packed there.
int64_t size_as(const Rule& rule, int64_t k, int64_t n) {
  return packed_size(rule.pairs ? words_of(k) : k, n);
}
Panels pack_as(const Rule& rule, char trans, int64_t k, int64_t n, const Matrix& x, float* out) {
  if (!rule.pairs) return pack(trans, k, n, x, out);
  return pack_pairs(trans, k, n, trans == 'T' ? rounded(n, k, x) : rounded(k, n, x), out);
}

// Keys, or values, of one head and sequence: side by side, as the columns of a product, and one below the
// other.
struct Operand {
  Panels across, down;  // [d, n] and [n, d]
};

// A head's keys and values of a sequence, packed once for all queries that are compared with them.
struct Packed {
  Operand k, v;
};

// Keys of a block that lie together: count of them from one of a sequence on, scored from a column on. A
// block's own keys begin a triangle at key `diagonal`: none of the rows before see what lies there. Tiles of
// bfloat16 are as high as the triangle's steps would be, so they take all of it.
struct Piece {
  const Packed* packed;
  int64_t row, from, column, count, diagonal;
};

// What the sequence continues, and itself.
std::array<Piece, 2> pieces(const Rule& rule, const Span& s, const Block& b, const Packed* before,
                            const Packed* own) {
  const int64_t from = std::max<int64_t>(0, b.first_key - s.before_length);
  return {Piece{before, s.before, b.first_key, 0, std::max<int64_t>(0, s.before_length - b.first_key), -1},
          Piece{own, s.first, from, s.before_length + from - b.first_key, b.last_key - s.before_length - from,
                rule.causal && !rule.pairs ? b.begin : -1}};
}

// Calls f(first row of the block, first key, its column, how many keys) for rectangles that together hold
// what the block sees of the piece; the diagonal goes in steps of a panel. All rows are in the first of them.
template <typename F>
void for_steps(const Piece& p, int64_t rows, const F& f) {
  if (p.count == 0) return;
  if (p.diagonal < 0) return f(0, p.from, p.column, p.count);
  if (p.diagonal > p.from) f(0, p.from, p.column, p.diagonal - p.from);
  for (int64_t row = 0; row < rows; row += kPanel) {
    f(row, p.diagonal + row, p.column + p.diagonal - p.from + row, std::min(kPanel, rows - row));
  }
}

// scores [rows, keys] = x kᵀ for rows x [rows, d]
void score(const Rule& rule, const Piece& p, int64_t rows, int64_t d, const Matrix& x, const Panels& across,
           float* scores, int64_t stride) {
  for_steps(p, rows, [&](int64_t row, int64_t key, int64_t column, int64_t count) {
    const Panels b{across.data + key / kPanel * across.panel_stride, across.panel_stride, across.row_stride};
    multiply_as(rule.pairs, rows - row, count, d, {x.data + row * x.stride, x.stride}, b,
                scores + row * stride + column, stride);
  });
}

// out [rows, d] = weights k, or += with add
void blend(const Rule& rule, const Piece& p, int64_t rows, int64_t d, const float* weights, int64_t stride,
           const Panels& down, const Matrix& out, bool add) {
  for_steps(p, rows, [&](int64_t row, int64_t key, int64_t column, int64_t count) {
    const int64_t first = rule.pairs ? key / 2 : key;
    const Panels b{down.data + first * down.row_stride, down.panel_stride, down.row_stride};
    multiply_as(rule.pairs, rows - row, d, count, {weights + row * stride + column, stride}, b,
                writable(out) + row * out.stride, out.stride, add);
    add = true;
  });
}

// out [keys of the piece, d] += weightsᵀ x, for weights turned [keys, rows] and x [rows, d] packed.
void spread(const Rule& rule, const Piece& p, int64_t rows, int64_t d, const float* turned, int64_t stride,
            const Panels& x, const Matrix& out) {
  for_steps(p, rows, [&](int64_t row, int64_t key, int64_t column, int64_t count) {
    const Panels b{x.data + row * x.row_stride, x.panel_stride, x.row_stride};
    multiply_as(rule.pairs, count, d, rows - row, {turned + column * stride + row, stride}, b,
                writable(out) + key * out.stride, out.stride, true);
  });
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

// Scores before their scale, through the soft cap where there is one.
void cap_scores(const Rule& rule, float* scores, int64_t n) {
  if (rule.softcap > 0) kernels().softcap(scores, n, rule.scale / rule.softcap, rule.softcap);
}

void hide_rest(float* row, const Seen& s, int64_t keys) {
  std::fill(row, row + s.from, 0.0f);
  std::fill(row + s.to, row + keys, 0.0f);
}

// The first sequence of each family, and the end of the last.
std::vector<int64_t> families_of(const Shape& s) {
  std::vector<int64_t> families;
  for (int64_t i = 0; i < s.sequences; ++i) {
    if (s.continues == nullptr || s.continues[i] < 0) families.push_back(i);
  }
  families.push_back(s.sequences);
  return families;
}

// Floats of a thread's scratch for one matrix of scores of any block of the sequence.
int64_t score_size(const Rule& rule, const Span& s) {
  const int64_t keys = s.before_length + s.length + key_step(rule);  // a block's first key is rounded down
  return std::min(s.length, block_rows(rule)) * ((keys + 15) / 16 * 16);
}

// Scores of a (sequence, head) on average, and heads that are worth waking a thread for.
int64_t heads_worth(const Shape& s) {
  constexpr int64_t kWork = 1 << 17;  // multiply-adds
  int64_t scores = 0;
  for (int64_t i = 0; i < s.sequences; ++i) {
    const Span span = span_of(s, i);
    scores += span.length * (span.before_length + span.length);
  }
  return std::max<int64_t>(1, kWork * s.sequences / std::max<int64_t>(1, 2 * s.head_dim * scores));
}

Panels pack_across(const Rule& rule, int64_t n, int64_t d, const Matrix& x, float*& at) {
  const Panels made = pack_as(rule, 'T', d, n, x, at);
  at += size_as(rule, d, n);
  return made;
}
Panels pack_down(const Rule& rule, int64_t n, int64_t d, const Matrix& x, float*& at) {
  const Panels made = pack_as(rule, 'N', n, d, x, at);
  at += size_as(rule, n, d);
  return made;
}

// A block of one head: its rows of out, and the logs of their softmax's denominators.
void attend(const Rule& rule, const Shape& s, const Span& span, const Block& b,
            const std::array<Piece, 2>& parts, const Matrix& q, const Matrix& out, float* scores,
            float* sums) {
  const int64_t rows = b.rows(), keys = b.keys(), stride = b.stride(), d = s.head_dim;
  const float after_cap = rule.softcap > 0 ? 1 : rule.scale;
  for (const Piece& p : parts) {
    if (p.count > 0) score(rule, p, rows, d, q, p.packed->k.across, scores, stride);
  }
  for (int64_t i = 0; i < rows; ++i) {
    float* row = scores + i * stride;
    const Seen r = seen(rule, span, b, i);
    cap_scores(rule, row + r.from, r.to - r.from);
    float peak;
    const float sum = kernels().softmax(row + r.from, r.to - r.from, after_cap, &peak);
    sums[i] = after_cap * peak + std::log(sum);
    kernels().scale(row + r.from, 1 / sum, row + r.from, r.to - r.from);
    hide_rest(row, r, keys);
  }
  bool add = false;
  for (const Piece& p : parts) {
    if (p.count == 0) continue;
    blend(rule, p, rows, d, scores, stride, p.packed->v.down, out, add);
    add = true;
  }
}

std::tuple<at::Tensor, at::Tensor> attention_cpu(const at::Tensor& q, const at::Tensor& k,
                                                 const at::Tensor& v, const at::Tensor& cu_seqlens,
                                                 int64_t heads, double scale, bool causal, int64_t window,
                                                 double softcap, const std::optional<at::Tensor>& continues,
                                                 std::optional<at::ScalarType> compute) {
  const Rule rule = rule_of(causal, window, scale, softcap, compute);
  const Shape s = check(q, k, v, cu_seqlens, continues, heads, rule);
  at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor lse = at::empty({heads, s.rows}, q.options());
  const int64_t d = s.head_dim;
  // Keys side by side and values one below the other, of every sequence and key head.
  std::vector<int64_t> places{0};
  for (int64_t i = 0; i < s.sequences; ++i) {
    const int64_t n = s.cu[i + 1] - s.cu[i];
    places.push_back(places.back() + s.kv_heads * (size_as(rule, d, n) + size_as(rule, n, d)));
  }
  Buffer<float> memory(places.back());
  std::vector<Packed> packed(static_cast<size_t>(s.sequences * s.kv_heads));
  const int64_t worth = heads_worth(s);
  parallel_for(0, s.sequences * s.kv_heads, worth, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task / s.kv_heads, kv = task % s.kv_heads, n = s.cu[i + 1] - s.cu[i];
      float* at = memory.data() + places[i] + kv * (size_as(rule, d, n) + size_as(rule, n, d));
      packed[task].k.across = pack_across(rule, n, d, head_of(k, s.cu[i], kv, d), at);
      packed[task].v.down = pack_down(rule, n, d, head_of(v, s.cu[i], kv, d), at);
    }
  });
  share(s.sequences * s.heads, 1, worth, [&](int64_t task, int64_t, int64_t) {
    static thread_local Buffer<float> scores;
    const int64_t i = task / s.heads, head = task % s.heads, kv = head / (s.heads / s.kv_heads);
    const Span span = span_of(s, i);
    scores.reserve(score_size(rule, span));
    const int64_t before = s.continues == nullptr || s.continues[i] < 0 ? i : s.continues[i];
    const Packed &own = packed[i * s.kv_heads + kv], &continued = packed[before * s.kv_heads + kv];
    float* sums = lse.mutable_data_ptr<float>() + head * s.rows + span.first;
    for (int64_t at = 0; at < span.length; at += block_rows(rule)) {
      const Block b = block_at(rule, span, at);
      attend(rule, s, span, b, pieces(rule, span, b, &continued, &own),
             head_of(q, span.first + b.begin, head, d), head_of(out, span.first + b.begin, head, d),
             scores.data(), sums + b.begin);
    }
  });
  return {out, lse};
}

struct Passed {
  const at::Tensor &grad, &q, &out, &lse, &grad_q, &grad_k, &grad_v;
};

// Keys and values of a sequence's head, each both ways.
Packed pack_both(const Rule& rule, const Shape& s, const at::Tensor& k, const at::Tensor& v, int64_t sequence,
                 int64_t kv, Buffer<float>& memory) {
  const int64_t first = s.cu[sequence], n = s.cu[sequence + 1] - first, d = s.head_dim;
  memory.reserve(2 * size_as(rule, d, n) + size_as(rule, n, d));
  float* at = memory.data();
  const Matrix km = head_of(k, first, kv, d), vm = head_of(v, first, kv, d);
  Packed made{};
  made.k.across = pack_across(rule, n, d, km, at);
  made.k.down = pack_down(rule, n, d, km, at);
  made.v.across = pack_across(rule, n, d, vm, at);
  return made;
}

// A thread's memory for a block.
struct Scratch {
  Buffer<float> probs, scores, capped, turned, panels;
};

// A block of one query head: its rows of grad_q, and what it adds to its keys' and values' gradients.
void block_backward(const Rule& rule, const Shape& s, const Passed& t, const Span& span, const Block& b,
                    int64_t head, int64_t kv, const std::array<Piece, 2>& parts, Scratch& w) {
  const int64_t rows = b.rows(), keys = b.keys(), stride = b.stride(), d = s.head_dim;
  const int64_t row0 = span.first + b.begin;
  const float after_cap = rule.softcap > 0 ? 1 : rule.scale;
  const float* sums = t.lse.const_data_ptr<float>() + head * s.rows + row0;
  const Matrix q = head_of(t.q, row0, head, d), g = head_of(t.grad, row0, head, d),
               o = head_of(t.out, row0, head, d), gq = head_of(t.grad_q, row0, head, d);
  float *probs = w.probs.data(), *scores = w.scores.data(), *capped = w.capped.data(),
        *turned = w.turned.data();
  for (const Piece& p : parts) {
    if (p.count == 0) continue;
    score(rule, p, rows, d, q, p.packed->k.across, probs, stride);
    score(rule, p, rows, d, g, p.packed->v.across, scores, stride);
  }
  for (int64_t i = 0; i < rows; ++i) {
    float *prob = probs + i * stride, *row = scores + i * stride;
    const Seen r = seen(rule, span, b, i);
    const int64_t n = r.to - r.from;
    cap_scores(rule, prob + r.from, n);
    if (rule.softcap > 0) std::copy_n(prob + r.from, n, capped);
    kernels().exp(prob + r.from, n, after_cap, sums[i]);
    hide_rest(prob, r, keys);
    const float delta = kernels().dot(g.data + i * g.stride, o.data + i * o.stride, d);
    kernels().softmax_backward(row + r.from, prob + r.from, n, delta, rule.scale);
    if (rule.softcap > 0) kernels().softcap_backward(row + r.from, capped, n, rule.softcap);
    hide_rest(row, r, keys);
  }
  const Panels gp = pack_as(rule, 'N', rows, d, g, w.panels.data());
  transpose(rows, keys, {probs, stride}, turned, rows);
  for (const Piece& p : parts) spread(rule, p, rows, d, turned, rows, gp, head_of(t.grad_v, p.row, kv, d));
  const Panels qp = pack_as(rule, 'N', rows, d, q, w.panels.data());
  transpose(rows, keys, {scores, stride}, turned, rows);
  bool add = false;
  for (const Piece& p : parts) {
    if (p.count == 0) continue;
    spread(rule, p, rows, d, turned, rows, qp, head_of(t.grad_k, p.row, kv, d));
    blend(rule, p, rows, d, scores, stride, p.packed->k.down, gq, add);
    add = true;
  }
}

// A sequence's rows for one key head and the query heads that share it.
void sequence_backward(const Rule& rule, const Shape& s, const Passed& t, const Span& span, int64_t kv,
                       const Packed& before, const Packed& own) {
  static thread_local Scratch w;
  const int64_t d = s.head_dim, group = s.heads / s.kv_heads, size = score_size(rule, span);
  for (Buffer<float>* b : {&w.probs, &w.scores, &w.turned}) b->reserve(size);
  w.capped.reserve(span.before_length + span.length);
  w.panels.reserve(size_as(rule, std::min(span.length, block_rows(rule)), d));
  for (const at::Tensor& grad : {t.grad_k, t.grad_v}) {
    const Matrix m = head_of(grad, span.first, kv, d);
    for (int64_t i = 0; i < span.length; ++i) std::fill_n(writable(m) + i * m.stride, d, 0.0f);
  }
  for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    for (int64_t at = 0; at < span.length; at += block_rows(rule)) {
      const Block b = block_at(rule, span, at);
      block_backward(rule, s, t, span, b, head, kv, pieces(rule, span, b, &before, &own), w);
    }
  }
}

// A group's query heads add to the gradients of one key head, so a task is a key head with its group.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t heads, double scale,
    bool causal, int64_t window, double softcap, const std::optional<at::Tensor>& continues,
    std::optional<at::ScalarType> compute) {
  const Rule rule = rule_of(causal, window, scale, softcap, compute);
  const Shape s = check(q, k, v, cu_seqlens, continues, heads, rule);
  TORCH_CHECK(grad.sizes() == q.sizes() && grad.is_contiguous() && out.sizes() == q.sizes() &&
                  out.is_contiguous() && lse.numel() == heads * s.rows && lse.is_contiguous(),
              "varlen_attention_backward: grad ", grad.sizes(), ", out ", out.sizes(), " and lse ",
              lse.sizes(), " do not fit q ", q.sizes(), ", or are not dense");
  at::Tensor grad_q = at::empty(q.sizes(), q.options()), grad_k = at::empty(k.sizes(), k.options()),
             grad_v = at::empty(v.sizes(), v.options());
  const Passed passed{grad, q, out, lse, grad_q, grad_k, grad_v};
  const std::vector<int64_t> families = families_of(s);
  const auto n = static_cast<int64_t>(families.size()) - 1;
  share(n * s.kv_heads, 1, 1, [&](int64_t task, int64_t, int64_t) {
    const auto family = static_cast<size_t>(task / s.kv_heads);
    const int64_t kv = task % s.kv_heads;
    Buffer<float> first_memory, memory;
    const Packed first = pack_both(rule, s, k, v, families[family], kv, first_memory);
    for (int64_t i = families[family]; i < families[family + 1]; ++i) {
      const Packed own = i == families[family] ? first : pack_both(rule, s, k, v, i, kv, memory);
      sequence_backward(rule, s, passed, span_of(s, i), kv, first, own);
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
