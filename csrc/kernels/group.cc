#include "kernels/group.h"

#include <algorithm>

#include "kernels/buffer.h"
#include "kernels/parallel.h"

namespace rlt {
namespace {

// Multiply-adds that are worth waking a thread for.
constexpr int64_t kWork = 1 << 17;
// Panels that are computed before gate and up become one, and that a single row is multiplied by at once: as
// many sums hide what each waits for.
constexpr int64_t kGatedPanels = 4, kPanelsOfOne = 8;
// Panels that are unpacked at once for a single tile.
constexpr int64_t kStepPanels = 4;

int64_t grain_of(int64_t work_of_one) {
  return std::max<int64_t>(1, kWork / std::max<int64_t>(1, work_of_one));
}

// How this processor multiplies by a group's panels.
struct PanelProduct {
  Product multiply;
  int64_t k;         // rows of a panel
  int64_t elements;  // that a panel has; a word counts as one
  int64_t row_bytes;
};

PanelProduct product_of(const Group& g) {
  const Kernels& k = kernels();
  if (g.element == Element::kF32) return {k.multiply_f32, g.in, kPanel * g.padded_in(), 4 * kPanel};
  if (g.element == Element::kF16) return {k.multiply_f16, g.in, kPanel * g.in, 2 * kPanel};
  const int64_t words = words_of(g.in);
  if (k.multiply_pairs) return {k.multiply_pairs, words, kPanel * words, 4 * kPanel};
  return {k.multiply_bf16, g.in, 2 * kPanel * words, 2 * kPanel};
}

// Rows of x that products with panels of few bits take: all of a panel, whose last may be zeros.
int64_t few_rows(const PanelProduct& by, const Group& g) {
  return kernels().multiply_pairs ? by.k : g.padded_in();
}

// A call that is under way.
struct Call {
  int64_t rows;
  const Prepared& in;
  const Group& group;
  const PanelProduct& by;
  const std::vector<AdaptedRows>& adapted;
  const Finish& finish;
  float* y;
  int64_t y_stride;
  int64_t hop = 0;  // panels from those at hand to the same thread's next

  const float* turned = nullptr;  // x [k][rows] for multiply_few

  // Panels of few bits are unpacked for each tile, which is the only one.
  bool in_steps() const { return group.quant != nullptr && (turned != nullptr || rows <= by.multiply.rows); }
};

const char* panel_at(const Group& g, int64_t p) {
  return static_cast<const char*>(g.weights) + p * g.panel_bytes();
}

// k [from, to) of panels [begin, end) in memory of the calling thread, until its next call. Panels from next
// on are the next that it reads after k is through.
const char* unpacked(const Group& g, int64_t begin, int64_t end, int64_t from, int64_t to, int64_t next) {
  static thread_local Buffer<uint16_t> memory;
  const int64_t size = g.unpack ? g.panel_bytes() / 2 : kPanel * (to - from) * g.element_size() / 2;
  memory.reserve((end - begin) * size);
  if (g.unpack) g.unpack(begin, end, memory.data());
  for (int64_t p = begin; p < end && g.quant != nullptr; ++p) {
    g.quant->unpack(p, from, to, next + p - begin, memory.data() + (p - begin) * size);
  }
  return reinterpret_cast<const char*>(memory.data());
}

// u [rows, width] = x·Aᵀ of each row's adapter.
void multiply_low(Matrix x, int64_t in, const std::vector<AdaptedRows>& adapted, float* u, int64_t width) {
  const Product& by = kernels().multiply_f32;
  for (const auto& [begin, end, adapter] : adapted) {
    if (adapter->width == 0) continue;
    const int64_t first_row = begin, rows = end - begin, tiles = tiles_of(rows, by);
    const LowRank& low = *adapter;
    parallel_for(0, tiles, grain_of(by.rows * low.width * in), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        Tile t;
        const int64_t row = first_row + tile_begin(rows, tiles, i);
        t.rows = static_cast<int>(first_row + tile_begin(rows, tiles, i + 1) - row);
        t.a = x.data + row * x.stride;
        t.a_stride = x.stride;
        t.c = u + row * width;
        t.c_stride = width;
        t.b = low.a;
        t.k = in;
        t.panels = low.width / kPanel;
        t.panel_stride = in * kPanel;
        by(t);
      }
    });
  }
}

// Has t, the i-th of n tiles that go over the same panels, fetch its part of the panels from next on. The
// first tile finds its own panels in memory where nothing has fetched them, so it leaves that to them.
void fetch(const Call& call, Tile& t, int64_t i, int64_t n, int64_t next) {
  if (i == 0 || next + t.panels > call.group.panels || call.group.weights == nullptr) return;
  t.ahead = panel_at(call.group, next) + call.group.panel_bytes() * (i - 1) / (n - 1);
  t.ahead_step = (call.by.row_bytes + n - 2) / (n - 1);
}

// Adds scale·B·u to panels [first, …) of t, whose rows begin at `row`.
void add_adapters(const Call& call, const Tile& t, int64_t row, int64_t first) {
  const Product& by = kernels().multiply_f32;
  for (const auto& [begin, end, adapter] : call.adapted) {
    const int64_t from = std::max(row, begin), to = std::min(row + t.rows, end);
    if (adapter->width == 0) continue;
    for (int64_t at = from; at < to; at += by.rows) {
      Tile part;
      part.rows = static_cast<int>(std::min<int64_t>(by.rows, to - at));
      part.store = Store::kAdd;
      part.a_stride = call.in.u_stride;
      part.c_stride = t.c_stride;
      for (int64_t p = first; p < first + t.panels; p += part.panels) {
        const LowRank::Share* const share = adapter->shares + p;
        const auto [column, rank, offset] = *share;
        // The panels of a layer follow each other.
        part.panels = 1;
        while (p + part.panels < first + t.panels && share[part.panels].column == column &&
               share[part.panels].rank == rank &&
               share[part.panels].offset == offset + part.panels * rank * kPanel) {
          ++part.panels;
        }
        if (rank == 0) continue;
        part.a = call.in.u + at * call.in.u_stride + column;
        part.c = t.c + (at - row) * t.c_stride + (p - first) * kPanel;
        part.b = adapter->b + offset;
        part.k = rank;
        part.panel_stride = rank * kPanel;
        by(part);
      }
    }
  }
}

// Panels that are unpacked for t alone: a step of k at a time, which comes and goes in the first-level cache.
// Sums wait for the next step in memory as they are, so this changes no bit.
void multiply_steps(const Call& call, const Tile& t, int64_t first) {
  constexpr int64_t kCache = 32 << 10, kStep = QuantPanels::kStep;
  alignas(64) float sums[kMostRows * kStepPanels * kPanel];
  const int64_t k = call.group.padded_in(), columns = t.panels * kPanel,
                row_bytes = kPanel * call.group.element_size(),
                step = std::max(kStep, kCache / (t.panels * row_bytes) / kStep * kStep);
  Tile part = t;
  if (t.store == Store::kAdd) part.c = sums, part.c_stride = columns, part.store = Store::kSet;
  for (int64_t from = 0; from < k; from += step) {
    const int64_t to = std::min(from + step, k), of_k = call.by.row_bytes / row_bytes;
    part.b = unpacked(call.group, first, first + t.panels, from, to, first + call.hop);
    part.a = t.a + from / of_k;
    part.k = std::min(to / of_k, t.k) - from / of_k;
    part.panel_stride = t.panel_stride * (to - from) / k;
    part.bias = to == k ? t.bias : nullptr;
    call.by.multiply(part);
    part.store = Store::kContinue;
  }
  if (part.c == t.c) return;
  for (int r = 0; r < t.rows; ++r) kernels().add_scaled(1, sums + r * columns, t.c + r * t.c_stride, columns);
}

void multiply_few(const Call& call, Tile t, int64_t first) {
  const FewProduct& by = kernels().multiply_few;
  FewPanel panels[kStepPanels];
  t.a = call.turned;
  t.a_stride = call.rows;
  t.k = few_rows(call.by, call.group);
  for (int64_t p = 0; p < t.panels; ++p) panels[p] = call.group.quant->at(first + p, first + p + call.hop);
  by.multiply(t, panels);
}

// t has its rows, of which the first is `row`, counts its panels and says where they are and the sums go.
void multiply_tile(const Call& call, Tile& t, int64_t row, int64_t first) {
  t.k = call.by.k;
  t.panel_stride = call.by.elements;
  if (call.group.bias != nullptr) t.bias = call.group.bias + first * kPanel;
  if (call.turned != nullptr) {
    multiply_few(call, t, first);
  } else if (call.in_steps()) {
    multiply_steps(call, t, first);
  } else {
    call.by.multiply(t);
  }
  add_adapters(call, t, row, first);
}

// Rows [row, row + t.rows), panels [begin, end).
void multiply_plain(const Call& call, Tile& t, int64_t row, int64_t begin, int64_t end) {
  t.panels = end - begin;
  t.c = call.y + row * call.y_stride + begin * kPanel;
  t.c_stride = call.y_stride;
  const int64_t columns = t.panels * kPanel;
  const Matrix& residual = call.finish.residual;
  const bool add = residual.data != nullptr, act = call.finish.activation != kNoActivation;
  const auto residual_row = [&](int r) {
    return residual.data + (row + r) * residual.stride + begin * kPanel;
  };
  if (add && !act) {
    t.store = Store::kAdd;
    for (int r = 0; r < t.rows && residual.data != call.y; ++r) {
      std::copy_n(residual_row(r), columns, t.c + r * t.c_stride);
    }
  }
  multiply_tile(call, t, row, begin);
  for (int r = 0; r < t.rows && act; ++r) {
    kernels().activate(t.c + r * t.c_stride, columns, call.finish.activation);
    if (add) kernels().add_scaled(1, residual_row(r), t.c + r * t.c_stride, columns);
  }
}

void multiply_gated(const Call& call, Tile& t, int64_t row, int64_t first) {
  alignas(64) float both[kMostRows * kGatedPanels * kPanel];
  t.c = both;
  t.c_stride = t.panels * kPanel;
  multiply_tile(call, t, row, first);
  float* const y = call.y + row * call.y_stride + first / 2 * kPanel;
  kernels().gate_panels(both, t.c_stride, y, call.y_stride, t.rows, t.panels / 2, call.finish.activation);
  const Matrix& residual = call.finish.residual;
  for (int r = 0; r < t.rows && residual.data != nullptr; ++r) {
    kernels().add_scaled(1, residual.data + (row + r) * residual.stride + first / 2 * kPanel,
                         y + r * call.y_stride, t.panels / 2 * kPanel);
  }
}

// All rows, panels [begin, end); those from next on are fetched meanwhile.
void multiply_panels(const Call& call, int64_t begin, int64_t end, int64_t next) {
  const Group& g = call.group;
  const char* weights = nullptr;
  if (g.weights != nullptr) {
    weights = panel_at(g, begin);
  } else if (!call.in_steps()) {
    weights = unpacked(g, begin, end, 0, g.padded_in(), next);
  }
  const int64_t tiles = call.in_steps() ? 1 : tiles_of(call.rows, call.by.multiply);
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t row = tile_begin(call.rows, tiles, i);
    Tile t;
    t.rows = static_cast<int>(tile_begin(call.rows, tiles, i + 1) - row);
    t.a = call.in.x.data + row * call.in.x.stride;
    t.a_stride = call.in.x.stride;
    const int64_t step = !call.finish.gated ? end - begin : call.rows == 1 ? kPanelsOfOne : kGatedPanels;
    for (int64_t first = begin; first < end; first += step) {
      t.panels = std::min(step, end - first);
      t.b = weights == nullptr ? nullptr : weights + (first - begin) * g.panel_bytes();
      t.ahead = nullptr;
      fetch(call, t, i, tiles, next + first - begin);
      if (call.finish.gated) {
        multiply_gated(call, t, row, first);
      } else {
        multiply_plain(call, t, row, first, end);
      }
    }
  }
}

// Panels at once: their weights stay in the second-level cache while all rows go over them, and there are
// some for each thread.
int64_t panels_of_step(int64_t rows, const Group& group, const Finish& finish) {
  constexpr int64_t kMany = 512;  // rows, which each step reads again
  const int64_t multiple = rows == 1 ? kPanelsOfOne : finish.gated ? kGatedPanels : kernels().panels_at_once;
  const int64_t most = panels_in_cache(group.panel_bytes(), multiple), threads = thread_count();
  if (rows >= kMany) {
    const int64_t steps = threads * ((group.panels + threads * most - 1) / (threads * most)),
                  step = (group.panels + steps - 1) / steps, unit = finish.gated ? kGatedPanels : 2;
    return (step + unit - 1) / unit * unit;
  }
  // Where they are unpacked, the first-level cache.
  if (group.unpack) return multiple;
  // Tiles that follow the first find their panels in the cache only if those that are fetched for later fit
  // beside them.
  constexpr int64_t kShared = 192 << 10;
  return std::clamp(group.panels / (4 * threads) / multiple * multiple, multiple,
                    rows == 1 ? most : panels_in(kShared, group.panel_bytes(), multiple));
}

// x as words of two bfloat16.
Matrix rounded(int64_t rows, int64_t in, Matrix x, Buffer<float>& words) {
  const int64_t width = words_of(in);
  words.reserve(rows * width);
  parallel_for(0, rows, grain(in), [&](int64_t begin, int64_t end) {
    round_rows(end - begin, in, {x.data + begin * x.stride, x.stride},
               reinterpret_cast<uint16_t*>(words.data() + begin * width));
  });
  return {words.data(), width};
}

}  // namespace

void pack_panel(const Group& group, const void* rows, int64_t count, void* panel) {
  const int64_t in = group.in;
  if (group.element == Element::kF32) {
    pack('T', in, count, {static_cast<const float*>(rows), in}, static_cast<float*>(panel));
  } else if (group.element == Element::kBF16) {
    pack_pairs('T', in, count, {static_cast<const uint16_t*>(rows), in}, static_cast<float*>(panel));
  } else {
    const auto* w = static_cast<const uint16_t*>(rows);
    auto* out = static_cast<uint16_t*>(panel);
    for (int64_t k = 0; k < in; ++k) {
      for (int64_t j = 0; j < kPanel; ++j) *out++ = j < count ? w[j * in + k] : 0;
    }
  }
}

void multiply_group(int64_t rows, Matrix x, const Group& group, const std::vector<AdaptedRows>& adapted,
                    const Finish& finish, float* y, int64_t y_stride) {
  if (rows == 0) return;
  static thread_local Buffer<float> low, words;
  int64_t width = 0;
  for (const AdaptedRows& run : adapted) width = std::max(width, run.adapter->width);
  low.reserve(rows * width);
  multiply_low(x, group.in, adapted, low.data(), width);
  const bool pairs = group.element == Element::kBF16 && kernels().multiply_pairs;
  multiply_prepared(rows, {pairs ? rounded(rows, group.in, x, words) : x, low.data(), width}, group, adapted,
                    finish, y, y_stride);
}

void multiply_prepared(int64_t rows, const Prepared& x, const Group& group,
                       const std::vector<AdaptedRows>& adapted, const Finish& finish, float* y,
                       int64_t y_stride) {
  if (rows == 0) return;
  const PanelProduct by = product_of(group);
  Call call{rows, x, group, by, adapted, finish, y, y_stride};
  if (group.quant != nullptr && rows <= kernels().multiply_few.rows) {
    static thread_local Buffer<float> turned;
    const int64_t k = few_rows(by, group);
    const bool fits = rows == 1 && k == by.k;
    turned.reserve(rows * k);
    if (!fits) {
      transpose(rows, by.k, x.x, turned.data(), rows);
      std::fill_n(turned.data() + rows * by.k, rows * (k - by.k), 0.0f);
    }
    call.turned = fits ? x.x.data : turned.data();
  }
  const int64_t step = call.in_steps() ? kStepPanels : panels_of_step(rows, group, finish);
  share(group.panels, step, grain_of(kPanel * rows * group.in),
        [&](int64_t begin, int64_t end, int64_t next) {
          Call own = call;
          own.hop = next - begin;
          multiply_panels(own, begin, end, next);
        });
}

}  // namespace rlt
