#include "engine/cpu/packed.h"

#include <cstring>

#include "kernels/parallel.h"
#include "kernels/tiles.h"

namespace rlt::engine {

PackedLinear::PackedLinear(const nn::LinearGroup& group)
    : group_(&group), layers_(group.layers()), panels_(group.panels()) {
  in_ = layers_[0]->in();
}

const char* PackedLinear::panel(int64_t p) const {
  return static_cast<const char*>(weights_->w.const_data_ptr()) + p * by_.panel_bytes();
}

void PackedLinear::refresh() {
  weights_.reset();  // frees what is of no use any more before there is more
  weights_ = group_->weights();
  by_ = panel_product(group_->element(), in_);
  bias_ = weights_->bias ? weights_->bias->const_data_ptr<float>() : nullptr;
  set_adapter(1, layers_);
}

void PackedLinear::set_adapter(int32_t number, const std::vector<const nn::Linear*>& layers) {
  const auto i = static_cast<size_t>(number - 1);
  if (adapters_.size() <= i) adapters_.resize(i + 1);
  if (layers.empty()) {
    adapters_[i] = {};
  } else {
    pack_adapter(layers, adapters_[i]);
  }
  low_panels_ = 0;
  for (const Adapter& adapter : adapters_) low_panels_ = std::max(low_panels_, adapter.panels);
}

void PackedLinear::pack_adapter(const std::vector<const nn::Linear*>& layers, Adapter& to) const {
  to.low.assign(panels_.size(), {});
  std::vector<at::Tensor> as(layers.size()), bs(layers.size());
  std::vector<int64_t> column(layers.size());
  int64_t columns = 0, b_size = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const nn::Linear& layer = *layers[i];
    if (!layer.a.defined()) continue;
    as[i] = layer.a.detach().to(at::kCPU, at::kFloat).contiguous();
    bs[i] = layer.b.detach().to(at::kCPU, at::kFloat).contiguous();
    column[i] = columns;
    columns += layer.a.size(0);
  }
  to.panels = panels_of(columns);
  if (to.panels == 0) return;
  for (size_t p = 0; p < panels_.size(); ++p) {
    const size_t i = panels_[p].layer;
    if (!as[i].defined()) continue;
    to.low[p] = {column[i], as[i].size(0), b_size};
    b_size += as[i].size(0) * kPanel;
  }
  to.a.reserve(to.panels * kPanel * in_);
  to.b.reserve(b_size);
  std::memset(to.a.data(), 0, sizeof(float) * static_cast<size_t>(to.panels * kPanel * in_));
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!as[i].defined()) continue;
    const float* a = as[i].const_data_ptr<float>();
    for (int64_t j = 0; j < as[i].size(0); ++j) {
      const int64_t at = column[i] + j;
      float* out = to.a.data() + at / kPanel * kPanel * in_ + at % kPanel;
      for (int64_t k = 0; k < in_; ++k) out[k * kPanel] = a[j * in_ + k];
    }
  }
  for (size_t p = 0; p < panels_.size(); ++p) {
    const auto [column_of, rank, offset] = to.low[p];
    if (rank == 0) continue;
    const auto [layer, row, count] = panels_[p];
    const float* b = bs[layer].const_data_ptr<float>();
    const auto scale = static_cast<float>(layers[layer]->scale);
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t j = 0; j < kPanel; ++j) {
        to.b[offset + k * kPanel + j] = j < count ? scale * b[(row + j) * rank + k] : 0.0f;
      }
    }
  }
}

void PackedLinear::low(const Rows& x, float* u) const {
  if (low_panels_ == 0 || x.adapted == nullptr) return;
  for (const AdaptedRows& run : *x.adapted) {
    const Adapter& to = adapter(run);
    if (to.panels == 0) continue;
    const int64_t rows = run.end - run.begin, tiles = tiles_of(rows);
    const int64_t grain = std::max<int64_t>(1, (1 << 18) / (kTileRows * to.panels * kPanel * in_));
    parallel_for(0, tiles, grain, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        Tile t;
        const int64_t row = run.begin + tile_begin(rows, tiles, i);
        t.rows = static_cast<int>(run.begin + tile_begin(rows, tiles, i + 1) - row);
        for (int r = 0; r < t.rows; ++r) {
          t.a[r] = x.data + (row + r) * x.stride;
          t.c[r] = u + (row + r) * low_width();
        }
        t.b = to.a.data();
        t.k = in_;
        t.panels = to.panels;
        t.panel_stride = in_ * kPanel;
        kernels().multiply_f32(t);
      }
    });
  }
}

int64_t PackedLinear::group(int64_t multiple) const { return panels_in_cache(by_.panel_bytes(), multiple); }

Rows PackedLinear::take(Rows x, Buffer<float>& words) const {
  const Matrix taken = rows_for(by_, x.count, in_, {x.data, x.stride}, words);
  x.data = taken.data, x.stride = taken.stride;
  return x;
}

// The first tile finds its own panels in memory where nothing has fetched them, so it leaves that to them.
void PackedLinear::fetch(Tile& t, int64_t i, int64_t n, int64_t next) const {
  if (i == 0 || next + t.panels > panels()) return;
  t.ahead = panel(next) + by_.panel_bytes() * (i - 1) / (n - 1);
  t.ahead_step = (by_.row_bytes + n - 2) / (n - 1);
}

// t is of the rows of x from `row` on and counts its panels; u is that of all rows.
void PackedLinear::tile(Tile t, const Rows& x, int64_t row, const float* u, int64_t first,
                        Store store) const {
  t.b = panel(first);
  t.k = by_.k;
  t.panel_stride = by_.elements;
  t.store = store;
  if (bias_ != nullptr) t.bias = bias_ + first * kPanel;
  by_.multiply(t);
  if (low_panels_ == 0 || x.adapted == nullptr) return;
  for (const AdaptedRows& run : *x.adapted) {
    const int64_t begin = std::max(row, run.begin), end = std::min(row + t.rows, run.end);
    if (begin >= end || adapter(run).panels == 0) continue;
    Tile part;
    part.rows = static_cast<int>(end - begin);
    part.panels = t.panels;
    for (int r = 0; r < part.rows; ++r) part.c[r] = t.c[begin - row + r];
    add_adapter(part, adapter(run), u + begin * low_width(), first);
  }
}

// Adds scale·B·u to the rows of t, whose first row's u is given.
void PackedLinear::add_adapter(Tile t, const Adapter& adapter, const float* u, int64_t first) const {
  const int64_t panels = t.panels;
  t.panels = 1;
  t.store = Store::kAdd;
  for (int64_t p = first; p < first + panels; ++p) {
    const auto [column, rank, offset] = adapter.low[static_cast<size_t>(p)];
    if (rank > 0) {
      for (int r = 0; r < t.rows; ++r) t.a[r] = u + r * low_width() + column;
      t.b = adapter.b.data() + offset;
      t.k = rank;
      kernels().multiply_f32(t);
    }
    for (int r = 0; r < t.rows; ++r) t.c[r] += kPanel;
  }
}

namespace {

// Calls f(i, n, first row, rows) for tile i of n of x.
template <class F>
void for_tiles(const Rows& x, const F& f) {
  const int64_t n = tiles_of(x.count);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = tile_begin(x.count, n, i);
    f(i, n, row, static_cast<int>(tile_begin(x.count, n, i + 1) - row));
  }
}

}  // namespace

void PackedLinear::multiply(const Rows& x, const float* u, int64_t begin, int64_t end, int64_t next, float* y,
                            int64_t y_stride, Store store) const {
  for_tiles(x, [&](int64_t index, int64_t count, int64_t row, int rows) {
    Tile t;
    t.rows = rows;
    t.panels = end - begin;
    fetch(t, index, count, next);
    for (int r = 0; r < rows; ++r) {
      t.a[r] = x.data + (row + r) * x.stride;
      t.c[r] = y + (row + r) * y_stride + begin * kPanel;
    }
    tile(t, x, row, u, begin, store);
  });
}

void PackedLinear::multiply_gated(const Rows& x, const float* u, int64_t begin, int64_t end, int64_t next,
                                  int32_t activation, float* y, int64_t y_stride) const {
  for_tiles(x, [&](int64_t index, int64_t count, int64_t row, int rows) {
    alignas(64) float both[kTileRows][kGatedPanels * kPanel];
    for (int64_t p = begin; p < end; p += kGatedPanels) {
      Tile t;
      t.rows = rows;
      t.panels = std::min(kGatedPanels, end - p);
      fetch(t, index, count, next + p - begin);
      for (int r = 0; r < rows; ++r) {
        t.a[r] = x.data + (row + r) * x.stride;
        t.c[r] = both[r];
      }
      tile(t, x, row, u, p, Store::kSet);
      kernels().gate_panels(both[0], kGatedPanels * kPanel, y + row * y_stride + p / 2 * kPanel, y_stride,
                            rows, t.panels / 2, activation);
    }
  });
}

}  // namespace rlt::engine
