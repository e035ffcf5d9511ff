// Attention of sampled tokens over the cache: scores, softmax and the sum of values, all by the tile kernels.
// Queries, keys, values and probabilities are rounded where training rounds them, so that both compute the
// same log-probabilities.

#include <cmath>

#include "engine/cpu/network.h"
#include "kernels/parallel.h"

namespace rlt::engine {
namespace {

// Rotates features 2j and 2j + 1 together.
void rotate_pairs(float* x, const float* cosines, const float* sines, int64_t half) {
  for (int64_t j = 0; j < half; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * cosines[j] - b * sines[j];
    x[2 * j + 1] = b * cosines[j] + a * sines[j];
  }
}

}  // namespace

void Network::attention(const Block& block, int64_t layer, Workspace& w) const {
  const nn::Config& c = config();
  if (!w.prompts.empty()) prompts(block, layer, w);
  const int64_t group = c.heads / block.kv_heads, width = (group + 2) * block.head_dim;
  int64_t longest = 1;
  for (const Work& span : w.spans) longest = std::max(longest, span.position + span.count);
  // A tile has the queries of a group of heads that share their keys, or some of them.
  const int64_t parts = (group + together() - 1) / together();
  const int64_t tasks = static_cast<int64_t>(w.written.size()) * block.kv_heads;
  const int64_t work = 8 * width + 2 * longest * block.head_dim * group;
  share(tasks, 1, std::max<int64_t>(1, (1 << 17) / work), [&](int64_t i, int64_t, int64_t next) {
    const auto row_of = [&](int64_t task) { return w.written[static_cast<size_t>(task / block.kv_heads)]; };
    const int64_t row = row_of(i), head = i % block.kv_heads;
    float* scores = w.scores.data() + thread_number() * score_area(w);
    place(block, layer, w, row, head);
    if (next < tasks) fetch(block, w, row_of(next), next % block.kv_heads);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = group * part / parts;
      attend(block, layer, w, row, head, head * group + first, group * (part + 1) / parts - first, scores);
    }
  });
}

// Norms and rotates a row's queries of the heads that share key head `head`, and moves that head's key and
// value, where the layer makes some, to the cache.
void Network::place(const Block& block, int64_t layer, Workspace& w, int64_t row, int64_t head) const {
  const nn::Config& c = config();
  const auto [s, position] = w.rows[static_cast<size_t>(row)];
  const Work& span = w.spans[static_cast<size_t>(s)];
  float* base = w.qkv.data() + row * block.qkv.width();
  const int64_t group = c.heads / block.kv_heads, d = block.head_dim;
  int64_t half = 0;
  const float *cosines = nullptr, *sines = nullptr;
  if (c.rotary_dim > 0) {
    const auto ropes = static_cast<int64_t>(c.rope_list.size());
    const auto rope = static_cast<size_t>(c.layer_ropes[static_cast<size_t>(layer)]);
    half = static_cast<int64_t>(c.rope_list[rope].inv_freq.size());
    cosines = w.rotations.data() + (row * ropes + static_cast<int64_t>(rope)) * c.rotary_dim;
    sines = cosines + c.rotary_dim / 2;
  }
  const auto turn = [&](float* x, const Norm& norm) {
    if (c.qk_norm == RLT_QK_NORM_HEADS) apply(norm, x, x, d);
    if (c.rope_pairs) return rotate_pairs(x, cosines, sines, half);
    if (half > 0) kernels().rotate(x, cosines, sines, 1, x, half, 2 * half);
  };
  const auto factor = static_cast<float>(c.query_factor(position));
  for (int64_t h = head * group; h < (head + 1) * group; ++h) {
    float* const q = base + block.q + h * block.q_stride;
    turn(q, block.q_norm);
    if (factor != 1) kernels().scale(q, factor, q, d);
    if (block.rounds()) round_in_place(q, d);
  }
  if (block.keys_of != layer) return;
  float *k = base + block.k + head * block.stride, *v = base + block.v + head * block.stride;
  static thread_local Buffer<float> normed;  // as k may be v too
  if (!block.v_norm.weight.empty()) {
    normed.reserve(d);
    apply(block.v_norm, v, normed.data(), d);
    v = normed.data();
  }
  turn(k, block.k_norm);
  const int64_t at = position < span.prefix_length ? position : position - span.prefix_length;
  segment_at(span, position).write(layer, head, at, k, v);
}

// Asks for the first keys and values that the next token of a sequence will be compared with: since the pass
// before, all weights have gone through the caches. What comes behind them the processor sees coming.
void Network::fetch(const Block& block, const Workspace& w, int64_t row, int64_t head) const {
  constexpr int64_t kPositions = 64, kLine = 16;  // words
  const auto ask = [](const float* data, int64_t count) {
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(data + i, 0, 2);
  };
  const CacheShape::Layer& shape = cache_shape().layer(block.keys_of);
  const auto [s, position] = w.rows[static_cast<size_t>(row)];
  const Work& span = w.spans[static_cast<size_t>(s)];
  const int64_t end = position + 1, cut = std::min(end, span.prefix_length);
  const auto ask_segment = [&](CpuSegment& segment, int64_t positions) {
    const int64_t n = std::min(positions, kPositions), columns = shape.value_dim() / kPanel;
    const Panels keys = segment.keys(block.keys_of, head), values = segment.values(block.keys_of, head);
    ask(keys.data, panels_of(n) * keys.panel_stride);
    for (int64_t p = 0; p < columns; ++p) {
      ask(values.data + p * values.panel_stride, n * shape.value_words() / columns);
    }
  };
  if (cut > 0) ask_segment(kept(span.prefix), cut);
  if (end > cut) ask_segment(kept(span.tail), end - cut);
}

// Query heads [first, first + heads), which share key head `head`, of the row of a sampled token. scores
// is the thread's own. The keys of prefix and tail are summed in order of position, so where a sequence is
// cut changes nothing.
void Network::attend(const Block& block, int64_t layer, Workspace& w, int64_t row, int64_t head,
                     int64_t first, int64_t heads, float* scores) const {
  const nn::Config& c = config();
  const int64_t d = block.head_dim, values = cache_shape().layer(block.keys_of).value_dim();
  const auto [s, position] = w.rows[static_cast<size_t>(row)];
  const Work& span = w.spans[static_cast<size_t>(s)];
  // Keys [low, end) are seen; scores begin at key `origin`, where a panel does.
  const int64_t low = first_seen(layer, position), end = position + 1, cut = span.prefix_length;
  const bool in_prefix = low < cut;
  const int64_t tail_panel = in_prefix ? 0 : (low - cut) / kPanel;
  const int64_t origin = in_prefix ? low / kPanel * kPanel : cut + tail_panel * kPanel;
  const int64_t stride = w.score_stride;
  // Words have two elements of bfloat16, which become floats: sums are the same as those of a cache of
  // floats.
  const int64_t halves = block.rounds() ? 2 : 1;
  const Product& product = block.rounds() ? kernels().multiply_bf16 : kernels().multiply_f32;

  Tile t;
  t.rows = static_cast<int>(heads);
  t.a = w.qkv.data() + row * block.qkv.width() + block.q + first * block.q_stride;
  t.a_stride = block.q_stride;
  t.c = scores;
  t.c_stride = stride;
  t.k = d;
  const auto score = [&](const CpuSegment& segment, int64_t panel, int64_t positions) {
    const Panels keys = segment.keys(block.keys_of, head);
    t.b = keys.data + panel * keys.panel_stride;
    t.panel_stride = halves * keys.panel_stride;
    t.panels = panels_of(positions) - panel;
    product(t);
  };
  if (in_prefix) score(kept(span.prefix), low / kPanel, cut);
  t.c += std::max(cut, origin) - origin;
  score(kept(span.tail), tail_panel, end - cut);

  float shares[kMostRows];  // that keys have
  for (int r = 0; r < t.rows; ++r)
    shares[r] = to_probabilities(block, first + r, scores + r * stride + (low - origin), end - low);

  // A head whose width is no multiple of a panel is summed in a place of its own.
  float* const out = w.attended.data() + (row * c.heads + first) * d;
  t.panels = values / kPanel;
  t.a_stride = stride;
  t.c = values == d ? out : scores + together() * stride;
  t.c_stride = values;
  // Positions [begin, end) of a segment by the probabilities from `from` on.
  const auto sum = [&](const CpuSegment& segment, float* from, int64_t begin, int64_t end) {
    const Panels rows = segment.values(block.keys_of, head);
    const int64_t before = begin % halves;  // a position that shares the first word
    for (int r = 0; r < t.rows && before > 0; ++r) from[r * stride - 1] = 0;
    t.a = from - before;
    t.b = rows.data + begin / halves * kPanel;
    t.panel_stride = halves * rows.panel_stride;
    t.k = end - begin + before;
    product(t);
    t.store = Store::kContinue;
  };
  const int64_t begin = std::max(cut, low);
  if (in_prefix) sum(kept(span.prefix), scores + (low - origin), low, cut);
  sum(kept(span.tail), scores + (begin - origin), begin - cut, end - cut);
  if (t.c == out && block.sinks.empty()) return;
  for (int r = 0; r < t.rows; ++r) kernels().scale(t.c + r * values, shares[r], out + r * d, d);
}

float Network::to_probabilities(const Block& block, int64_t head, float* scores, int64_t n) const {
  const auto scale = static_cast<float>(config().attention_scale),
             cap = static_cast<float>(config().attention_softcap);
  if (cap > 0) kernels().softcap(scores, n, scale / cap, cap);
  float peak;
  const float sum = kernels().softmax(scores, n, cap > 0 ? 1 : scale, &peak);
  kernels().scale(scores, 1 / sum, scores, n);
  if (block.rounds()) round_in_place(scores, n);
  if (block.sinks.empty()) return 1;
  return sum / (sum + std::exp(block.sinks[static_cast<size_t>(head)] - scale * peak));
}

}  // namespace rlt::engine
