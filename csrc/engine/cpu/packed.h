// Linear layers in the layout of the tile kernels, with their adapters.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/group.h"
#include "kernels/kernels.h"
#include "nn/linear_group.h"

namespace rlt::engine {

// Panels that multiply_gated computes before it applies the activation.
constexpr int64_t kGatedPanels = 4;

// Rows [begin, end) that go through an adapter.
struct AdaptedRows {
  int64_t begin, end;
  int32_t adapter;  // its number, from 1
};

// Rows of a matrix, and which of them go through adapters: null for none.
struct Rows {
  const float* data = nullptr;
  int64_t stride = 0, count = 0;
  const std::vector<AdaptedRows>* adapted = nullptr;
};

// One or more linear layers of the same input, side by side: their outputs are panels of 16 columns.
class PackedLinear {
 public:
  PackedLinear() = default;
  // The group is borrowed, its packed weights are shared. Nothing is read before refresh.
  explicit PackedLinear(const nn::LinearGroup& group);

  // Reads the layers' own adapters as number 1, and weights where they may have changed since the last time.
  void refresh();
  // Reads those of layers of the same weights as a number, or takes that away where layers is empty.
  void set_adapter(int32_t number, const std::vector<const nn::Linear*>& layers);

  int64_t panels() const { return static_cast<int64_t>(panels_.size()); }
  int64_t width() const { return panels() * kPanel; }
  int64_t in() const { return in_; }
  int64_t bytes() const { return panels() * by_.panel_bytes(); }
  // Columns of low(): 0 where no layer has an adapter.
  int64_t low_width() const { return low_panels_ * kPanel; }

  // u [rows, low_width()] = x·Aᵀ of each row's adapter. Takes rows as they are.
  void low(const Rows& x, float* u) const;
  // x as multiply takes it; words is for what it has to round.
  Rows take(Rows x, Buffer<float>& words) const;
  // Panels, a multiple of so many, that are best multiplied at once: their weights stay in the second-level
  // cache while all rows go over them.
  int64_t group(int64_t multiple) const;
  // y [rows, …] = x·Wᵀ + bias, and the adapters' share from u, for panels [begin, end); panel p is columns
  // [16·p, 16·p + 16) of y. kAdd adds to y. As many panels from next on are fetched meanwhile.
  void multiply(const Rows& x, const float* u, int64_t begin, int64_t end, int64_t next, float* y,
                int64_t y_stride, Store store) const;
  // y [rows, …] = activation(gate)·up for layers whose panels alternate between gate and up; pair p is
  // columns [16·p, 16·p + 16) of y. begin, end and next count panels and are even.
  void multiply_gated(const Rows& x, const float* u, int64_t begin, int64_t end, int64_t next,
                      int32_t activation, float* y, int64_t y_stride) const;

 private:
  const char* panel(int64_t p) const;
  struct Adapter;
  const Adapter& adapter(const AdaptedRows& rows) const {
    return adapters_[static_cast<size_t>(rows.adapter - 1)];
  }
  void pack_adapter(const std::vector<const nn::Linear*>& layers, Adapter& to) const;
  // Has t, the i-th of n tiles that go over the same panels, fetch its part of the panels from next on.
  void fetch(Tile& t, int64_t i, int64_t n, int64_t next) const;
  void tile(Tile t, const Rows& x, int64_t row, const float* u, int64_t first, Store store) const;
  void add_adapter(Tile t, const Adapter& adapter, const float* u, int64_t first) const;

  const nn::LinearGroup* group_ = nullptr;
  std::vector<const nn::Linear*> layers_;
  std::vector<nn::LinearGroup::Panel> panels_;
  std::shared_ptr<const nn::LinearGroup::Weights> weights_;
  const float* bias_ = nullptr;  // [width] or null
  int64_t in_ = 0;
  PanelProduct by_{};
  // Of each panel of the output, its layer's columns of u and where its scale·B is.
  struct LowRank {
    int64_t column = 0, rank = 0, offset = 0;
  };
  struct Adapter {
    int64_t panels = 0;
    Buffer<float> a, b;        // A of all layers as panels [in][16]; scale·B of panels as [r][16]
    std::vector<LowRank> low;  // [panels of the output]
  };
  int64_t low_panels_ = 0;         // the most that an adapter has
  std::vector<Adapter> adapters_;  // by number, from 1
};

}  // namespace rlt::engine
