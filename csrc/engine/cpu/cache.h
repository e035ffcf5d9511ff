// Keys and values of consecutive positions, for all layers and key heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "kernels/buffer.h"
#include "kernels/tiles.h"

namespace rlt::engine {

// What the segments of one model have in common.
struct CacheShape {
  int64_t layers = 0, heads = 0, head_dim = 0;  // heads: of keys
  int64_t value_dim() const { return panels_of(head_dim) * kPanel; }
};

// Both are matrices for the tile kernels. Keys of 16 positions are a panel [head_dim][16], so scores are
// q times panels; values are rows [position][value_dim], which the sum over positions runs down.
class CpuSegment final : public Segment {
 public:
  explicit CpuSegment(const CacheShape& shape) : shape_(shape) {}

  // Memory comes with grow; what there is stays.
  void resize(int64_t positions) override {
    limit_ = panels_of(positions) * kPanel;
    capacity_ = std::min(limit_, data_.size() / floats_of(kPanel) * kPanel);
  }
  // Makes room for so many of the positions that resize has asked for, and keeps those that are there: most
  // completions end before they are as long as they may be.
  void grow(int64_t positions) {
    if (positions <= capacity_) return;
    CpuSegment larger(shape_);
    larger.capacity_ = std::min(limit_, std::max({2 * capacity_, panels_of(positions) * kPanel, kFirst}));
    larger.data_ = Buffer<float>(floats_of(larger.capacity_));
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      for (int64_t head = 0; head < shape_.heads; ++head) {
        std::copy_n(keys(layer, head), capacity_ * shape_.head_dim, larger.keys(layer, head));
        std::copy_n(values(layer, head), capacity_ * shape_.value_dim(), larger.values(layer, head));
      }
    }
    capacity_ = larger.capacity_;
    data_ = std::move(larger.data_);
  }
  float* keys(int64_t layer, int64_t head) {
    return data_.data() + (layer * shape_.heads + head) * head_size();
  }
  float* values(int64_t layer, int64_t head) { return keys(layer, head) + capacity_ * shape_.head_dim; }
  // Keeps the key and the value [head_dim] of a position.
  void write(int64_t layer, int64_t head, int64_t position, const float* key, const float* value) {
    float* panel = keys(layer, head) + position / kPanel * kPanel * shape_.head_dim + position % kPanel;
    for (int64_t j = 0; j < shape_.head_dim; ++j) panel[j * kPanel] = key[j];
    float* row = values(layer, head) + position * shape_.value_dim();
    for (int64_t j = 0; j < shape_.head_dim; ++j) row[j] = value[j];
    for (int64_t j = shape_.head_dim; j < shape_.value_dim(); ++j) row[j] = 0;
  }

  // [H] of the last token, where an item asked for it.
  std::vector<float> hidden;

 private:
  static constexpr int64_t kFirst = 64;  // positions that are worth a block of memory

  int64_t head_size() const { return capacity_ * (shape_.head_dim + shape_.value_dim()); }
  int64_t floats_of(int64_t positions) const {
    return shape_.layers * shape_.heads * positions * (shape_.head_dim + shape_.value_dim());
  }

  CacheShape shape_;
  int64_t limit_ = 0, capacity_ = 0;  // positions, whole panels
  Buffer<float> data_;
};

// A segment that a CPU's runner has made.
inline CpuSegment& kept(Segment* segment) { return static_cast<CpuSegment&>(*segment); }

}  // namespace rlt::engine
