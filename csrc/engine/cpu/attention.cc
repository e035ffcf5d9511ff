// Attention of rows over the cache: scores, softmax and the sum of values, all by the tile kernels.

#include "engine/cpu/network.h"
#include "kernels/parallel.h"

namespace rlt::engine {

void Network::attention(const Block& block, int64_t layer, Workspace& w) const {
  const nn::Config& c = config();
  const auto rows = static_cast<int64_t>(w.rows.size());
  const int64_t group = c.heads / c.kv_heads, width = (group + 2) * c.head_dim;
  int64_t longest = 1;
  for (const Work& span : w.spans) longest = std::max(longest, span.position + span.count);
  // Queries of a prompt need the keys of the tokens before them, a single token only its own.
  const bool single = w.spans.size() == w.rows.size();
  if (!single) {
    parallel_for(0, rows * c.kv_heads, grain(8 * width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) place(block, layer, w, i / c.kv_heads, i % c.kv_heads);
    });
  }
  // A tile has kTileRows rows: the queries of a group of heads that share their keys, or some of them.
  const int64_t parts = (group + kTileRows - 1) / kTileRows;
  const int64_t tasks = static_cast<int64_t>(w.queries.size()) * c.kv_heads;
  const int64_t work = 8 * width + 2 * longest * c.head_dim * group;
  share(tasks, 1, std::max<int64_t>(1, (1 << 17) / work), [&](int64_t i, int64_t, int64_t next) {
    const auto query_of = [&](int64_t task) { return w.queries[static_cast<size_t>(task / c.kv_heads)]; };
    const Workspace::Query query = query_of(i);
    const int64_t head = i % c.kv_heads;
    float* scores = w.scores.data() + thread_number() * score_area(w);
    if (single) place(block, layer, w, query.row, head);
    if (next < tasks) fetch(layer, w, query_of(next), next % c.kv_heads);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = group * part / parts;
      attend(block, layer, w, query, head, head * group + first, group * (part + 1) / parts - first, scores);
    }
  });
}

// Norms, rotates and scales a row's queries of the heads that share key head `head`, and moves that head's
// key and value to the cache.
void Network::place(const Block& block, int64_t layer, Workspace& w, int64_t row, int64_t head) const {
  const nn::Config& c = config();
  const auto [s, position] = w.rows[static_cast<size_t>(row)];
  const Work& span = w.spans[static_cast<size_t>(s)];
  float* base = w.qkv.data() + row * block.qkv.width();
  const int64_t half = c.rotary_dim / 2, group = c.heads / c.kv_heads;
  const float* rotation = nullptr;
  if (half > 0) {
    const auto ropes = static_cast<int64_t>(c.rope_list.size());
    rotation = w.rotations.data() + (row * ropes + c.layer_ropes[static_cast<size_t>(layer)]) * c.rotary_dim;
  }
  const auto turn = [&](float* x, const Norm& norm) {
    if (c.qk_norm) apply(norm, x, x, c.head_dim);
    if (half > 0) kernels().rotate(x, rotation, rotation + half, 1, x, half, 2 * half);
  };
  for (int64_t h = head * group; h < (head + 1) * group; ++h) {
    float* q = base + block.q + h * block.stride;
    turn(q, block.q_norm);
    kernels().scale(q, static_cast<float>(c.attention_scale), q, c.head_dim);
  }
  float* k = base + block.k + head * block.stride;
  const float* v = base + block.v + head * block.stride;
  turn(k, block.k_norm);
  if (position < span.prefix_length) {
    kept(span.prefix).write(layer, head, position, k, v);
  } else {
    kept(span.tail).write(layer, head, position - span.prefix_length, k, v);
  }
}

// Asks for the first keys and values that the next token of a sequence will be compared with: since the pass
// before, all weights have gone through the caches. What comes behind them the processor sees coming.
void Network::fetch(int64_t layer, const Workspace& w, const Workspace::Query& query, int64_t head) const {
  constexpr int64_t kPositions = 64, kLine = 16;  // floats
  const auto ask = [](const float* data, int64_t count) {
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(data + i, 0, 2);
  };
  const CacheShape shape = cache_shape();
  const auto [s, position] = w.rows[static_cast<size_t>(query.row)];
  const Work& span = w.spans[static_cast<size_t>(s)];
  if (span.count > 1) return;  // a prompt's are there: its tokens have just written them
  const int64_t end = position + 1, cut = std::min(end, span.prefix_length);
  const auto ask_segment = [&](CpuSegment& segment, int64_t positions) {
    const int64_t n = std::min(positions, kPositions);
    ask(segment.keys(layer, head), panels_of(n) * kPanel * shape.head_dim);
    ask(segment.values(layer, head), n * shape.value_dim());
  };
  if (cut > 0) ask_segment(kept(span.prefix), cut);
  if (end > cut) ask_segment(kept(span.tail), end - cut);
}

// Query heads [first, first + heads), which share key head `head`, of a query's rows. scores is the
// thread's own. The keys of prefix and tail are summed in order of position, so where a sequence
// is cut changes nothing.
void Network::attend(const Block& block, int64_t layer, Workspace& w, const Workspace::Query& query,
                     int64_t head, int64_t first, int64_t heads, float* scores) const {
  const nn::Config& c = config();
  const Kernels& kernel = kernels();
  const int64_t d = c.head_dim, values = cache_shape().value_dim();
  const auto [s, start] = w.rows[static_cast<size_t>(query.row)];
  const Work& span = w.spans[static_cast<size_t>(s)];
  const int64_t window = c.layer_windows[static_cast<size_t>(layer)];
  const auto low_of = [&](int64_t position) {
    return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
  };
  // Keys [low, end) are seen by some row; scores begin at key `origin`, where a panel does.
  const int64_t low = low_of(start), end = start + query.count, cut = span.prefix_length;
  const int64_t prefix_end = std::min(end, cut);
  const bool in_prefix = low < cut;
  const int64_t tail_panel = in_prefix ? 0 : (low - cut) / kPanel;
  const int64_t origin = in_prefix ? low / kPanel * kPanel : cut + tail_panel * kPanel;
  const int64_t stride = w.score_stride;

  Tile t;
  t.rows = static_cast<int>(query.count * heads);
  float* out[kTileRows];
  for (int r = 0; r < t.rows; ++r) {
    const int64_t row = query.row + r / heads, h = first + r % heads;
    t.a[r] = w.qkv.data() + row * block.qkv.width() + block.q + h * block.stride;
    t.c[r] = scores + r * stride;
    out[r] = w.attended.data() + (row * c.heads + h) * d;
  }
  t.k = d;
  t.panel_stride = kPanel * d;
  if (in_prefix) {
    t.b = kept(span.prefix).keys(layer, head) + low / kPanel * t.panel_stride;
    t.panels = panels_of(prefix_end - origin);
    kernel.multiply_f32(t);
  }
  if (end > cut) {
    t.b = kept(span.tail).keys(layer, head) + tail_panel * t.panel_stride;
    t.panels = panels_of(end - cut) - tail_panel;
    for (int r = 0; r < t.rows; ++r) t.c[r] += std::max(cut, origin) - origin;
    kernel.multiply_f32(t);
  }

  const auto cap = static_cast<float>(c.attention_softcap);
  float inverse[kTileRows];
  for (int r = 0; r < t.rows; ++r) {
    const int64_t position = start + r / heads, from = low_of(position);
    float* row = scores + r * stride;
    float* seen = row + (from - origin);
    const int64_t count = position + 1 - from;
    if (cap > 0) kernel.softcap(seen, count, 1 / cap, cap);
    float peak;
    inverse[r] = 1.0f / kernel.softmax(seen, count, 1, &peak);
    for (int64_t i = low; i < from; ++i) row[i - origin] = 0;
    for (int64_t i = position + 1; i < end; ++i) row[i - origin] = 0;
  }

  // A head whose width is no multiple of a panel is summed in a place of its own.
  float* wide = scores + kTileRows * stride;
  t.k_stride = values;
  t.panel_stride = kPanel;
  t.panels = values / kPanel;
  for (int r = 0; r < t.rows; ++r) t.c[r] = values == d ? out[r] : wide + r * values;
  if (in_prefix) {
    for (int r = 0; r < t.rows; ++r) t.a[r] = scores + r * stride + (low - origin);
    t.b = kept(span.prefix).values(layer, head) + low * values;
    t.k = prefix_end - low;
    kernel.multiply_f32(t);
    t.store = Store::kContinue;
  }
  if (end > cut) {
    const int64_t begin = std::max(cut, low);
    for (int r = 0; r < t.rows; ++r) t.a[r] = scores + r * stride + (begin - origin);
    t.b = kept(span.tail).values(layer, head) + (begin - cut) * values;
    t.k = end - begin;
    kernel.multiply_f32(t);
  }
  for (int r = 0; r < t.rows; ++r) {
    for (int64_t j = 0; j < d; ++j) out[r][j] = t.c[r][j] * inverse[r];
  }
}

}  // namespace rlt::engine
