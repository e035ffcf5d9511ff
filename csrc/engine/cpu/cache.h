// Keys and values of consecutive positions, for all layers and key heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "kernels/buffer.h"
#include "kernels/gemm.h"
#include "kernels/tiles.h"

namespace rlt::engine {

// What the segments of one model have in common. Sizes count words of four bytes.
struct CacheShape {
  int64_t heads, head_dim;  // heads: of keys
  // Of each layer: whether keys and values are kept as bfloat16, to which attention rounds them anyway.
  std::vector<bool> halves;
  std::vector<int64_t> before = {0};  // that a position takes in the layers before each, and in all

  // Of convolutions instead of attention: words of each that its last tokens take, and those before it.
  std::vector<int64_t> recent = {};
  int64_t recent_words = 0;
  int64_t routed = 0;  // experts of a position, in all layers

  void add_layer(bool in_halves, int64_t convolved) {
    const auto layer = static_cast<int64_t>(halves.size());
    halves.push_back(in_halves);
    recent.push_back(convolved == 0 ? -1 : recent_words);
    recent_words += convolved;
    before.push_back(before.back() + heads * (key_words(layer) + value_words(layer)));
  }
  int64_t layers() const { return static_cast<int64_t>(halves.size()); }
  bool in_halves(int64_t layer) const { return halves[static_cast<size_t>(layer)]; }
  int64_t value_dim() const { return panels_of(head_dim) * kPanel; }
  int64_t key_words(int64_t layer) const {
    if (recent[static_cast<size_t>(layer)] >= 0) return 0;
    return in_halves(layer) ? words_of(head_dim) : head_dim;
  }
  int64_t value_words(int64_t layer) const {
    if (recent[static_cast<size_t>(layer)] >= 0) return 0;
    return in_halves(layer) ? value_dim() / 2 : value_dim();
  }
};

// Both are panels for the tile kernels. Keys of 16 positions are a panel [head_dim][16], so scores are q
// times panels; 16 columns of the values are a panel [position][16], which the sum over positions runs down.
// As bfloat16, elements 2i and 2i + 1 of a panel's column share a word, as in a weight's
// (Kernels::multiply_bf16): two of a key's elements, or a value's element at two positions.
class CpuSegment final : public Segment {
 public:
  // Borrows shape, which must outlive it.
  explicit CpuSegment(const CacheShape& shape) : shape_(shape), recent_(shape.recent_words) {}

  // Memory comes with grow; what there is stays.
  void resize(int64_t positions) override {
    limit_ = whole(positions);
    capacity_ = std::min(limit_, data_.size() / std::max<int64_t>(1, shape_.before.back()) / kStep * kStep);
  }
  // Makes room for so many of the positions that resize has asked for, and keeps those that are there: most
  // completions end before they are as long as they may be.
  void grow(int64_t positions) {
    const auto routed = static_cast<size_t>(positions * shape_.routed);
    if (routes.size() < routed) routes.resize(routed);
    if (positions <= capacity_) return;
    CpuSegment larger(shape_);
    larger.capacity_ = std::min(limit_, std::max({2 * capacity_, whole(positions), kFirst}));
    larger.data_ = Buffer<float>(shape_.before.back() * larger.capacity_);
    for (int64_t layer = 0; layer < shape_.layers(); ++layer) {
      for (int64_t head = 0; head < shape_.heads; ++head) {
        std::copy_n(keys(layer, head).data, capacity_ * shape_.key_words(layer),
                    writable(larger.keys(layer, head)));
        const Panels from = values(layer, head), to = larger.values(layer, head);
        for (int64_t p = 0; p < shape_.value_dim() / kPanel; ++p) {
          std::copy_n(from.data + p * from.panel_stride, from.panel_stride,
                      writable(to) + p * to.panel_stride);
        }
      }
    }
    capacity_ = larger.capacity_;
    data_ = std::move(larger.data_);
  }
  Panels keys(int64_t layer, int64_t head) const {
    const int64_t words = shape_.key_words(layer) + shape_.value_words(layer);
    return {data_.data() + capacity_ * (shape_.before[static_cast<size_t>(layer)] + head * words),
            kPanel * shape_.key_words(layer), kPanel};
  }
  Panels values(int64_t layer, int64_t head) const {
    return {keys(layer, head).data + capacity_ * shape_.key_words(layer),
            capacity_ * kPanel * shape_.value_words(layer) / shape_.value_dim(), kPanel};
  }
  // Before positions [begin, end) are written: products of bfloat16 take 32 positions at a time, so what
  // follows the last must be finite.
  void clear_after(int64_t begin, int64_t end) {
    const int64_t step = end / kStep * kStep;
    if (step < begin || step == end) return;  // cleared before, or full
    for (int64_t layer = 0; layer < shape_.layers(); ++layer) {
      for (int64_t head = 0; head < shape_.heads && shape_.in_halves(layer); ++head) {
        const Panels v = values(layer, head);
        for (int64_t p = 0; p < shape_.value_dim() / kPanel; ++p) {
          std::fill_n(writable(v) + p * v.panel_stride + step / 2 * kPanel, kStep / 2 * kPanel, 0.0f);
        }
      }
    }
  }
  // Keeps the key and the value [head_dim] of a position.
  void write(int64_t layer, int64_t head, int64_t position, const float* key, const float* value) {
    if (shape_.in_halves(layer)) return write_halves(layer, head, position, key, value);
    const Panels k = keys(layer, head), v = values(layer, head);
    float* const panel = writable(k) + position / kPanel * k.panel_stride + position % kPanel;
    for (int64_t j = 0; j < shape_.head_dim; ++j) panel[j * kPanel] = key[j];
    float* row = writable(v) + position * kPanel;
    for (int64_t j = 0; j < shape_.value_dim(); j += kPanel, row += v.panel_stride) {
      const int64_t n = std::min(kPanel, shape_.head_dim - j);
      std::fill_n(std::copy_n(value + j, n, row), kPanel - n, 0.0f);
    }
  }

  // What a layer's convolution keeps of the last positions, a row for each in turn.
  float* recent(int64_t layer) { return recent_.data() + shape_.recent[static_cast<size_t>(layer)]; }

  // [H] of the last token, where an item asked for it.
  std::vector<float> hidden;

 private:
  static constexpr int64_t kFirst = 64;             // positions that are worth a block of memory
  static constexpr int64_t kStep = 2 * kStepWords;  // that capacities are a multiple of

  static int64_t whole(int64_t positions) { return (positions + kStep - 1) / kStep * kStep; }
  static float* writable(const Panels& p) { return const_cast<float*>(p.data); }

  void write_halves(int64_t layer, int64_t head, int64_t position, const float* key, const float* value) {
    const Panels k = keys(layer, head), v = values(layer, head);
    const int64_t keys = 2 * shape_.key_words(layer), values = shape_.value_dim();
    static thread_local Buffer<uint16_t> rounded;
    rounded.reserve(keys);
    std::fill_n(rounded.data(), keys, uint16_t{0});
    kernels().round_bf16(key, rounded.data(), shape_.head_dim);
    auto* to =
        reinterpret_cast<uint16_t*>(writable(k) + position / kPanel * k.panel_stride + position % kPanel);
    for (int64_t j = 0; j < keys; ++j) to[j / 2 * 2 * kPanel + j % 2] = rounded[j];
    std::fill_n(rounded.data(), values, uint16_t{0});
    kernels().round_bf16(value, rounded.data(), shape_.head_dim);
    to = reinterpret_cast<uint16_t*>(writable(v) + position / 2 * kPanel) + position % 2;
    for (int64_t j = 0; j < values; ++j) to[2 * (j / kPanel * v.panel_stride + j % kPanel)] = rounded[j];
  }

  const CacheShape& shape_;
  int64_t limit_ = 0, capacity_ = 0;  // positions
  Buffer<float> data_, recent_;
};

// A segment that a CPU's runner has made.
inline CpuSegment& kept(Segment* segment) { return static_cast<CpuSegment&>(*segment); }

}  // namespace rlt::engine
