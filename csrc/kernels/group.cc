#include "kernels/group.h"

#include <algorithm>

#include "kernels/buffer.h"
#include "kernels/parallel.h"
#include "kernels/tiles.h"

namespace rlt {
namespace {

// Multiply-adds that are worth waking a thread for.
constexpr int64_t kWork = 1 << 17;
// Panels that are computed before gate and up become one.
constexpr int64_t kGatedPanels = 4;

int64_t grain_of(int64_t work_of_one) {
  return std::max<int64_t>(1, kWork / std::max<int64_t>(1, work_of_one));
}

// A product that is under way.
struct Product {
  int64_t rows;
  Matrix x;  // as by has it
  const Group& group;
  const PanelProduct& by;
  const LowRank* adapter;
  const float* u;
  const Finish& finish;
  float* y;
  int64_t y_stride;
};

const char* panel_at(const Group& g, int64_t p) {
  return static_cast<const char*>(g.weights) + p * g.panel_bytes();
}

// u [rows, width] = x·Aᵀ
void multiply_low(int64_t rows, Matrix x, int64_t in, const LowRank& adapter, float* u) {
  const int64_t tiles = tiles_of(rows);
  parallel_for(0, tiles, grain_of(kTileRows * adapter.width * in), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      Tile t;
      const int64_t row = tile_begin(rows, tiles, i);
      t.rows = static_cast<int>(tile_begin(rows, tiles, i + 1) - row);
      for (int r = 0; r < t.rows; ++r) {
        t.a[r] = x.data + (row + r) * x.stride;
        t.c[r] = u + (row + r) * adapter.width;
      }
      t.b = adapter.a;
      t.k = in;
      t.panels = adapter.width / kPanel;
      t.panel_stride = in * kPanel;
      kernels().multiply_f32(t);
    }
  });
}

// Has t, the i-th of n tiles that go over the same panels, fetch its part of the panels from next on. The
// first tile finds its own panels in memory where nothing has fetched them, so it leaves that to them.
void fetch(const Product& p, Tile& t, int64_t i, int64_t n, int64_t next) {
  if (i == 0 || next + t.panels > p.group.panels) return;
  t.ahead = panel_at(p.group, next) + p.group.panel_bytes() * (i - 1) / (n - 1);
  t.ahead_step = (p.by.row_bytes + n - 2) / (n - 1);
}

// t has its rows, counts its panels and says where the sums go; u is that of its first row.
void multiply_tile(const Product& p, Tile t, const float* u, int64_t first) {
  const Group& g = p.group;
  t.b = panel_at(g, first);
  t.k = p.by.k;
  t.panel_stride = p.by.elements;
  if (g.bias != nullptr) t.bias = g.bias + first * kPanel;
  p.by.multiply(t);
  if (p.adapter == nullptr) return;
  const int64_t last = first + t.panels;
  t.bias = nullptr;
  t.ahead = nullptr;
  t.panels = 1;
  t.store = Store::kAdd;
  for (int64_t i = first; i < last; ++i) {
    const auto [column, rank, offset] = p.adapter->shares[i];
    if (rank > 0) {
      for (int r = 0; r < t.rows; ++r) t.a[r] = u + r * p.adapter->width + column;
      t.b = p.adapter->b + offset;
      t.k = rank;
      kernels().multiply_f32(t);
    }
    for (int r = 0; r < t.rows; ++r) t.c[r] += kPanel;
  }
}

// Rows [row, row + t.rows), panels [begin, end).
void multiply_plain(const Product& p, Tile t, int64_t row, const float* u, int64_t begin, int64_t end) {
  t.panels = end - begin;
  const int64_t columns = t.panels * kPanel;
  const Matrix& residual = p.finish.residual;
  const bool add = residual.data != nullptr, act = p.finish.activation != kNoActivation;
  for (int r = 0; r < t.rows; ++r) {
    t.c[r] = p.y + (row + r) * p.y_stride + begin * kPanel;
    if (add && !act)
      std::copy_n(residual.data + (row + r) * residual.stride + begin * kPanel, columns, t.c[r]);
  }
  t.store = add && !act ? Store::kAdd : Store::kSet;
  multiply_tile(p, t, u, begin);
  if (!act) return;
  for (int r = 0; r < t.rows; ++r) {
    kernels().activate(t.c[r], columns, p.finish.activation);
    if (add)
      kernels().add_scaled(1, residual.data + (row + r) * residual.stride + begin * kPanel, t.c[r], columns);
  }
}

void multiply_gated(const Product& p, Tile t, int64_t row, const float* u, int64_t first, int64_t panels) {
  alignas(64) float both[kTileRows][kGatedPanels * kPanel];
  t.panels = panels;
  for (int r = 0; r < t.rows; ++r) t.c[r] = both[r];
  multiply_tile(p, t, u, first);
  float* const y = p.y + row * p.y_stride + first / 2 * kPanel;
  kernels().gate_panels(both[0], kGatedPanels * kPanel, y, p.y_stride, t.rows, panels / 2,
                        p.finish.activation);
  const Matrix& residual = p.finish.residual;
  if (residual.data == nullptr) return;
  for (int r = 0; r < t.rows; ++r) {
    kernels().add_scaled(1, residual.data + (row + r) * residual.stride + first / 2 * kPanel,
                         y + r * p.y_stride, panels / 2 * kPanel);
  }
}

// All rows, panels [begin, end); those from next on are fetched meanwhile.
void multiply_panels(const Product& p, int64_t begin, int64_t end, int64_t next) {
  const int64_t tiles = tiles_of(p.rows);
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t row = tile_begin(p.rows, tiles, i);
    const float* const u = p.adapter == nullptr ? nullptr : p.u + row * p.adapter->width;
    Tile t;
    t.rows = static_cast<int>(tile_begin(p.rows, tiles, i + 1) - row);
    for (int r = 0; r < t.rows; ++r) t.a[r] = p.x.data + (row + r) * p.x.stride;
    const int64_t step = p.finish.gated ? kGatedPanels : end - begin;
    for (int64_t first = begin; first < end; first += step) {
      t.panels = std::min(step, end - first);
      t.ahead = nullptr;
      fetch(p, t, i, tiles, next + first - begin);
      if (p.finish.gated) {
        multiply_gated(p, t, row, u, first, t.panels);
      } else {
        multiply_plain(p, t, row, u, first, end);
      }
    }
  }
}

}  // namespace

PanelProduct panel_product(Element element, int64_t in) {
  const Kernels& k = kernels();
  if (element == Element::kF32) return {k.multiply_f32, false, in, kPanel * in, 4 * kPanel};
  if (element == Element::kF16) return {k.multiply_f16, false, in, kPanel * in, 2 * kPanel};
  const int64_t words = (in + 1) / 2;
  if (k.multiply_pairs != nullptr) return {k.multiply_pairs, true, words, kPanel * words, 4 * kPanel};
  return {k.multiply_bf16, false, in, 2 * kPanel * words, 2 * kPanel};
}

Matrix rows_for(const PanelProduct& product, int64_t rows, int64_t in, Matrix x, Buffer<float>& words) {
  if (!product.pairs) return x;
  words.reserve(rows * product.k);
  parallel_for(0, rows, grain(in), [&](int64_t begin, int64_t end) {
    round_rows(end - begin, in, {x.data + begin * x.stride, x.stride},
               reinterpret_cast<uint16_t*>(words.data() + begin * product.k));
  });
  return {words.data(), product.k};
}

void pack_panel(const Group& group, const void* rows, int64_t count, void* panel) {
  const int64_t in = group.in;
  if (group.element == Element::kF32) {
    auto* out = static_cast<float*>(panel);
    if (count < kPanel) std::fill_n(out, in * kPanel, 0.0f);
    return transpose(count, in, {static_cast<const float*>(rows), in}, out, kPanel);
  }
  const auto* w = static_cast<const uint16_t*>(rows);
  auto* out = static_cast<uint16_t*>(panel);
  const int64_t step = group.element == Element::kBF16 ? 2 : 1;  // rows whose halves share words
  for (int64_t k = 0; k < group.padded_in(); ++k) {
    uint16_t* line = out + k / step * step * kPanel + k % step;
    for (int64_t j = 0; j < kPanel; ++j) line[j * step] = j < count && k < in ? w[j * in + k] : 0;
  }
}

void multiply_group(int64_t rows, Matrix x, const Group& group, const LowRank* adapter, const Finish& finish,
                    float* y, int64_t y_stride) {
  if (rows == 0) return;
  static thread_local Buffer<float> low, words;
  if (adapter != nullptr) {
    low.reserve(rows * adapter->width);
    multiply_low(rows, x, group.in, *adapter, low.data());
  }
  const PanelProduct by = panel_product(group.element, group.in);
  const Product p{rows,    rows_for(by, rows, group.in, x, words), group, by, adapter, low.data(), finish, y,
                  y_stride};
  // Panels at once whose weights stay in the second-level cache while all rows go over them.
  const int64_t step =
      panels_in_cache(group.panel_bytes(), finish.gated ? kGatedPanels : kernels().panels_at_once);
  share(group.panels, step, grain_of(kPanel * rows * group.in),
        [&](int64_t begin, int64_t end, int64_t next) { multiply_panels(p, begin, end, next); });
}

}  // namespace rlt
