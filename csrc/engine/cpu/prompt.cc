// Attention of prompts: a block of queries is compared with all the keys that it sees, and where weights are
// of bfloat16 and the processor multiplies in it, so do both products, by the cache as it is. Sums begin at
// keys that are the same in every block, so how a prompt is cut changes no bit.

#include "engine/cpu/network.h"
#include "kernels/gemm.h"
#include "kernels/parallel.h"

namespace rlt::engine {
namespace {

constexpr int64_t kBlockRows = 64;            // queries of a group's heads, about
constexpr int64_t kKeyStep = 2 * kStepWords;  // a panel of keys, and a step of products of bfloat16

int64_t step_start(int64_t key) { return key / kKeyStep * kKeyStep; }

}  // namespace

void Network::prompts(const Block& block, int64_t layer, Workspace& w) const {
  const nn::Config& c = config();
  const int64_t group = c.heads / block.kv_heads, width = (group + 2) * block.head_dim;
  for (const Workspace::Prompt& p : w.prompts) {
    parallel_for(0, p.span->count * block.kv_heads, grain(8 * width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        place(block, layer, w, p.row + i / block.kv_heads, i % block.kv_heads);
    });
  }
  // Each part packs the keys that it sees: as few as leave none of the threads without work.
  const auto spans = static_cast<int64_t>(w.prompts.size());
  const int64_t parts = spans * block.kv_heads >= 2 * thread_count() ? 1 : thread_count();
  share(spans * block.kv_heads * parts, 1, 1, [&](int64_t task, int64_t, int64_t) {
    const int64_t part = task % parts, head = task / parts % block.kv_heads;
    const Workspace::Prompt& p = w.prompts[static_cast<size_t>(task / parts / block.kv_heads)];
    attend_prompt(block, layer, w, p, head, p.span->count * part / parts, p.span->count * (part + 1) / parts);
  });
}

// Queries [begin, end) of a span, of all heads that share key head `head`.
void Network::attend_prompt(const Block& block, int64_t layer, Workspace& w, const Workspace::Prompt& prompt,
                            int64_t head, int64_t begin, int64_t end) const {
  if (begin == end) return;
  static thread_local Buffer<float> queries, scores, sums, shares;
  const nn::Config& c = config();
  const Work& span = *prompt.span;
  const int64_t d = block.head_dim, values = cache_shape().layer(block.keys_of).value_dim(),
                group = c.heads / block.kv_heads;
  const int64_t low = step_start(first_seen(layer, span.position + begin)), keys = span.position + end - low;
  const bool pairs = block.rounds();
  // From key `low` on.
  Panels k = kept(span.prefix).keys(block.keys_of, head), v = kept(span.prefix).values(block.keys_of, head);
  k.data += low / kPanel * k.panel_stride;
  v.data += (pairs ? low / 2 : low) * kPanel;
  const int64_t tokens = std::max<int64_t>(1, kBlockRows / group), stride = panels_of(keys) * kPanel;
  queries.reserve(tokens * group * d);
  scores.reserve(tokens * group * stride);
  sums.reserve(tokens * group * values);
  shares.reserve(tokens * group);
  for (int64_t first = begin; first < end; first += tokens) {
    const int64_t rows = std::min(tokens, end - first) * group, position = span.position + first;
    const auto row_of = [&](int64_t r) { return prompt.row + first + r / group; };
    for (int64_t r = 0; r < rows; ++r) {
      const float* q = w.qkv.data() + row_of(r) * block.qkv.width() + block.q +
                       (head * group + r % group) * block.q_stride;
      std::copy_n(q, d, queries.data() + r * d);
    }
    // Keys from `from` on, counted from low, of which panels are scored whole.
    const int64_t from = step_start(first_seen(layer, position)) - low,
                  seen = position + rows / group - low - from, columns = panels_of(seen) * kPanel;
    multiply_as(pairs, rows, columns, d, {queries.data(), d},
                {k.data + from / kPanel * k.panel_stride, k.panel_stride, kPanel}, scores.data(), stride);
    for (int64_t r = 0; r < rows; ++r) {
      float* const row = scores.data() + r * stride;
      const int64_t last = position + r / group, hidden = first_seen(layer, last) - low - from,
                    count = last + 1 - low - from - hidden;
      shares[r] = to_probabilities(block, head * group + r % group, row + hidden, count);
      std::fill_n(row, hidden, 0.0f);
      std::fill(row + hidden + count, row + columns, 0.0f);
    }
    multiply_as(pairs, rows, values, seen, {scores.data(), stride},
                {v.data + (pairs ? from / 2 : from) * v.row_stride, v.panel_stride, v.row_stride},
                sums.data(), values);
    for (int64_t r = 0; r < rows; ++r) {
      float* const out = w.attended.data() + (row_of(r) * c.heads + head * group + r % group) * d;
      kernels().scale(sums.data() + r * values, shares[r], out, d);
    }
  }
}

}  // namespace rlt::engine
