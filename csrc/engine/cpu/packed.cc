#include "engine/cpu/packed.h"

#include <cstring>

#include "kernels/parallel.h"
#include "kernels/tiles.h"

namespace rlt::engine {

PackedLinear::PackedLinear(std::vector<const nn::Linear*> layers, std::vector<Panel> panels)
    : layers_(std::move(layers)), panels_(std::move(panels)), seen_(layers_.size()) {
  in_ = layers_[0]->weight.size(1);
  type_ = layers_[0]->weight.scalar_type();
  for (const nn::Linear* layer : layers_) {
    if (layer->weight.scalar_type() != type_) type_ = at::kFloat;  // widening loses nothing
  }
}

const void* PackedLinear::panel(int64_t p) const {
  return weights_.data() + static_cast<size_t>(p * kPanel * padded_in()) * element_size();
}

void PackedLinear::refresh() {
  std::vector<Seen> now;
  bool changed = weights_.size() == 0;
  for (const nn::Linear* layer : layers_) {
    const at::Tensor& w = layer->weight;
    now.push_back({w.const_data_ptr(), w.unsafeGetTensorImpl()->version_counter().current_version()});
    changed = changed || w.requires_grad();
  }
  if (changed || now != seen_) {
    pack_weights();
    seen_ = std::move(now);
  }
  pack_bias();
  pack_adapters();
}

void PackedLinear::pack_weights() {
  if (weights_.size() == 0) weights_ = Buffer<char>(bytes());
  std::vector<at::Tensor> dense;
  for (const nn::Linear* layer : layers_)
    dense.push_back(layer->weight.detach().to(at::kCPU, type_).contiguous());
  parallel_for(0, panels(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) pack_panel(p, dense[static_cast<size_t>(panels_[p].layer)]);
  });
}

void PackedLinear::pack_panel(int64_t p, const at::Tensor& weight) {
  const auto [layer, row, count] = panels_[p];
  if (type_ == at::kFloat) {
    const float* w = weight.const_data_ptr<float>() + row * in_;
    float* out = static_cast<float*>(const_cast<void*>(panel(p)));
    for (int64_t k = 0; k < in_; ++k) {
      for (int64_t j = 0; j < kPanel; ++j) out[k * kPanel + j] = j < count ? w[j * in_ + k] : 0.0f;
    }
    return;
  }
  const auto* w = static_cast<const uint16_t*>(weight.const_data_ptr()) + row * in_;
  auto* out = static_cast<uint16_t*>(const_cast<void*>(panel(p)));
  const int64_t step = type_ == at::kBFloat16 ? 2 : 1;  // rows whose halves share words
  for (int64_t k = 0; k < padded_in(); ++k) {
    uint16_t* line = out + k / step * step * kPanel + k % step;
    for (int64_t j = 0; j < kPanel; ++j) line[j * step] = j < count && k < in_ ? w[j * in_ + k] : 0;
  }
}

void PackedLinear::pack_bias() {
  bool any = false;
  std::vector<at::Tensor> biases;
  for (const nn::Linear* layer : layers_) {
    any = any || layer->bias.defined();
    biases.push_back(layer->bias.defined() ? layer->bias.detach().cpu() : layer->bias);
  }
  if (!any) return;
  bias_.reserve(width());
  for (int64_t p = 0; p < panels(); ++p) {
    const auto [layer, row, count] = panels_[p];
    const at::Tensor& bias = biases[static_cast<size_t>(layer)];
    for (int64_t j = 0; j < kPanel; ++j) {
      bias_[p * kPanel + j] = bias.defined() && j < count ? bias.const_data_ptr<float>()[row + j] : 0.0f;
    }
  }
}

void PackedLinear::pack_adapters() {
  low_.assign(panels_.size(), {});
  std::vector<at::Tensor> as(layers_.size()), bs(layers_.size());
  std::vector<int64_t> column(layers_.size());
  int64_t columns = 0, b_size = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const nn::Linear& layer = *layers_[i];
    if (!layer.a.defined()) continue;
    as[i] = layer.a.detach().to(at::kCPU, at::kFloat).contiguous();
    bs[i] = layer.b.detach().to(at::kCPU, at::kFloat).contiguous();
    column[i] = columns;
    columns += layer.a.size(0);
  }
  low_panels_ = panels_of(columns);
  if (low_panels_ == 0) return;
  for (size_t p = 0; p < panels_.size(); ++p) {
    const auto i = static_cast<size_t>(panels_[p].layer);
    if (!as[i].defined()) continue;
    low_[p] = {column[i], as[i].size(0), b_size};
    b_size += as[i].size(0) * kPanel;
  }
  a_.reserve(low_panels_ * kPanel * in_);
  b_.reserve(b_size);
  std::memset(a_.data(), 0, sizeof(float) * static_cast<size_t>(low_panels_ * kPanel * in_));
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!as[i].defined()) continue;
    const float* a = as[i].const_data_ptr<float>();
    for (int64_t j = 0; j < as[i].size(0); ++j) {
      const int64_t at = column[i] + j;
      float* out = a_.data() + at / kPanel * kPanel * in_ + at % kPanel;
      for (int64_t k = 0; k < in_; ++k) out[k * kPanel] = a[j * in_ + k];
    }
  }
  for (size_t p = 0; p < panels_.size(); ++p) {
    const auto [column_of, rank, offset] = low_[p];
    if (rank == 0) continue;
    const auto [layer, row, count] = panels_[p];
    const float* b = bs[layer].const_data_ptr<float>();
    const auto scale = static_cast<float>(layers_[layer]->scale);
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t j = 0; j < kPanel; ++j) {
        b_[offset + k * kPanel + j] = j < count ? scale * b[(row + j) * rank + k] : 0.0f;
      }
    }
  }
}

void PackedLinear::low(const Rows& x, float* u) const {
  if (low_panels_ == 0 || x.adapted == 0) return;
  const int64_t tiles = tiles_of(x.adapted);
  const int64_t grain = std::max<int64_t>(1, (1 << 18) / (kTileRows * low_width() * in_));
  parallel_for(0, tiles, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      Tile t;
      const int64_t row = tile_begin(x.adapted, tiles, i);
      t.rows = static_cast<int>(tile_begin(x.adapted, tiles, i + 1) - row);
      for (int r = 0; r < t.rows; ++r) {
        t.a[r] = x.data + (row + r) * x.stride;
        t.c[r] = u + (row + r) * low_width();
      }
      t.b = a_.data();
      t.k = in_;
      t.panels = low_panels_;
      t.panel_stride = in_ * kPanel;
      kernels().multiply_f32(t);
    }
  });
}

int64_t PackedLinear::group(int64_t multiple) const {
  const int64_t bytes = static_cast<int64_t>(element_size()) * kPanel * padded_in();
  return std::max(multiple, kCacheBytes / bytes / multiple * multiple);
}

// The first tile finds its own panels in memory where nothing has fetched them, so it leaves that to them.
void PackedLinear::fetch(Tile& t, int64_t i, int64_t n, int64_t next) const {
  if (i == 0 || next + t.panels > panels()) return;
  const int64_t line = static_cast<int64_t>(element_size()) * kPanel;
  t.ahead = static_cast<const char*>(panel(next)) + line * padded_in() * (i - 1) / (n - 1);
  t.ahead_step = (line + n - 2) / (n - 1);
}

// t has its rows and counts its panels; u is the first row's low-rank input.
void PackedLinear::tile(Tile t, const float* u, int64_t first, bool adapted, Store store) const {
  const int64_t panels = t.panels;
  t.b = panel(first);
  t.k = in_;
  t.panel_stride = kPanel * padded_in();
  t.store = store;
  if (bias_.size() > 0) t.bias = bias_.data() + first * kPanel;
  const Kernels& k = kernels();
  (type_ == at::kFloat ? k.multiply_f32 : type_ == at::kBFloat16 ? k.multiply_bf16 : k.multiply_f16)(t);
  if (!adapted || low_panels_ == 0) return;
  t.bias = nullptr;
  t.ahead = nullptr;
  t.panels = 1;
  t.store = Store::kAdd;
  for (int64_t p = first; p < first + panels; ++p) {
    const auto [column, rank, offset] = low_[static_cast<size_t>(p)];
    if (rank > 0) {
      for (int r = 0; r < t.rows; ++r) t.a[r] = u + r * low_width() + column;
      t.b = b_.data() + offset;
      t.k = rank;
      k.multiply_f32(t);
    }
    for (int r = 0; r < t.rows; ++r) t.c[r] += kPanel;
  }
}

namespace {

// Calls f(i, n, first row, rows, adapted) for tile i of n of x; a tile is either all adapted or not at all.
template <class F>
void for_tiles(const Rows& x, const F& f) {
  const int64_t n = tiles_of(x.adapted) + tiles_of(x.count - x.adapted);
  int64_t done = 0;
  const auto part = [&](int64_t begin, int64_t end, bool adapted) {
    const int64_t rows = end - begin, tiles = tiles_of(rows);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = tile_begin(rows, tiles, i);
      f(done++, n, begin + row, static_cast<int>(tile_begin(rows, tiles, i + 1) - row), adapted);
    }
  };
  part(0, x.adapted, true);
  part(x.adapted, x.count, false);
}

}  // namespace

void PackedLinear::multiply(const Rows& x, const float* u, int64_t begin, int64_t end, int64_t next, float* y,
                            int64_t y_stride, Store store) const {
  for_tiles(x, [&](int64_t index, int64_t count, int64_t row, int rows, bool adapted) {
    Tile t;
    t.rows = rows;
    t.panels = end - begin;
    fetch(t, index, count, next);
    for (int r = 0; r < rows; ++r) {
      t.a[r] = x.data + (row + r) * x.stride;
      t.c[r] = y + (row + r) * y_stride + begin * kPanel;
    }
    tile(t, u + row * low_width(), begin, adapted, store);
  });
}

void PackedLinear::multiply_gated(const Rows& x, const float* u, int64_t begin, int64_t end, int64_t next,
                                  int32_t activation, float* y, int64_t y_stride) const {
  for_tiles(x, [&](int64_t index, int64_t count, int64_t row, int rows, bool adapted) {
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
      tile(t, u + row * low_width(), p, adapted, Store::kSet);
      kernels().gate_panels(both[0], kGatedPanels * kPanel, y + row * y_stride + p / 2 * kPanel, y_stride,
                            rows, t.panels / 2, activation);
    }
  });
}

}  // namespace rlt::engine
