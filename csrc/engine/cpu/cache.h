// Keys and values of consecutive positions, for all layers and key heads.
#pragma once

#include <cstdint>
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

  // Keeps its memory where that is enough.
  void resize(int64_t positions) override {
    capacity_ = panels_of(positions) * kPanel;
    data_.reserve(shape_.layers * shape_.heads * head_size());
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
  int64_t head_size() const { return capacity_ * (shape_.head_dim + shape_.value_dim()); }

  CacheShape shape_;
  int64_t capacity_ = 0;
  Buffer<float> data_;
};

// A segment that a CPU's runner has made.
inline CpuSegment& kept(Segment* segment) { return static_cast<CpuSegment&>(*segment); }

}  // namespace rlt::engine
