// Linear layers in the layout of the tile kernels, with adapters by number.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/group.h"
#include "nn/linear_group.h"

namespace rlt::engine {

// Rows [begin, end) that go through an adapter.
struct NumberedRows {
  int64_t begin, end;
  int32_t adapter;  // its number, from 1
};

// Rows of a matrix, and which of them go through adapters: null for none.
struct Rows {
  const float* data = nullptr;
  int64_t stride = 0, count = 0;
  const std::vector<NumberedRows>* adapted = nullptr;
};

// One or more linear layers of the same input, side by side: their outputs are panels of 16 columns.
class PackedLinear {
 public:
  PackedLinear() = default;
  // The group is borrowed, its packed weights are shared. Nothing is read before refresh.
  explicit PackedLinear(const nn::LinearGroup& group) : group_(&group) {}

  // Reads the layers' own adapters as number 1, and weights where they may have changed since the last time.
  void refresh();
  // Reads those of layers of the same weights as a number, or takes that away where layers is empty.
  void set_adapter(int32_t number, const std::vector<const nn::Linear*>& layers);

  bool empty() const { return group_->layers().empty(); }
  int64_t width() const { return group_->width(); }
  int64_t in() const { return group_->layers()[0]->in(); }
  Element element() const { return weights_->group.element; }
  int64_t bytes() const { return empty() ? 0 : weights_->bytes(); }
  // y [rows, …] = x·Wᵀ + bias, each row's adapter and what finish adds, as multiply_group has it.
  void multiply(const Rows& x, const Finish& finish, float* y, int64_t y_stride) const;

 private:
  const nn::LinearGroup* group_ = nullptr;
  std::shared_ptr<const nn::LinearGroup::Weights> weights_;
  std::vector<nn::LinearGroup::Adapters> adapters_;  // by number, from 1
};

}  // namespace rlt::engine
