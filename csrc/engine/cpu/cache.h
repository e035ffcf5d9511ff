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
  struct Layer {
    int64_t heads, head_dim;  // of keys; no heads where nothing of each position is kept
    bool halves;              // keys and values are kept as bfloat16, to which attention rounds them anyway
    int64_t before, recent;   // words of a position in the layers before, and of their last tokens

    int64_t value_dim() const { return panels_of(head_dim) * kPanel; }
    int64_t key_words() const { return halves ? words_of(head_dim) : head_dim; }
    int64_t value_words() const { return halves ? value_dim() / 2 : value_dim(); }
  };
  std::vector<Layer> layers = {};
  int64_t words = 0;         // of a position in all layers
  int64_t recent_words = 0;  // of the last tokens of convolutions, which take the place of attention
  int64_t routed = 0;        // experts of a position, in all layers

  void add_layer(int64_t heads, int64_t head_dim, bool halves, int64_t convolved) {
    layers.push_back({heads, head_dim, halves, words, recent_words});
    words += heads * (layers.back().key_words() + layers.back().value_words());
    recent_words += convolved;
  }
  const Layer& layer(int64_t n) const { return layers[static_cast<size_t>(n)]; }
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
    capacity_ = std::min(limit_, data_.size() / std::max<int64_t>(1, shape_.words) / kStep * kStep);
  }
  // Makes room for so many of the positions that resize has asked for, and keeps those that are there: most
  // completions end before they are as long as they may be.
  void grow(int64_t positions) {
    const auto routed = static_cast<size_t>(positions * shape_.routed);
    if (routes.size() < routed) routes.resize(routed);
    if (positions <= capacity_) return;
    CpuSegment larger(shape_);
    larger.capacity_ = std::min(limit_, std::max({2 * capacity_, whole(positions), kFirst}));
    larger.data_ = Buffer<float>(shape_.words * larger.capacity_);
    for (int64_t n = 0; n < static_cast<int64_t>(shape_.layers.size()); ++n) {
      const CacheShape::Layer& layer = shape_.layer(n);
      for (int64_t head = 0; head < layer.heads; ++head) {
        std::copy_n(keys(n, head).data, capacity_ * layer.key_words(), writable(larger.keys(n, head)));
        const Panels from = values(n, head), to = larger.values(n, head);
        for (int64_t p = 0; p < layer.value_dim() / kPanel; ++p) {
          std::copy_n(from.data + p * from.panel_stride, from.panel_stride,
                      writable(to) + p * to.panel_stride);
        }
      }
    }
    capacity_ = larger.capacity_;
    data_ = std::move(larger.data_);
  }
  Panels keys(int64_t n, int64_t head) const {
    const CacheShape::Layer& layer = shape_.layer(n);
    const int64_t words = layer.key_words() + layer.value_words();
    return {data_.data() + capacity_ * (layer.before + head * words), kPanel * layer.key_words(), kPanel};
  }
  Panels values(int64_t n, int64_t head) const {
    const CacheShape::Layer& layer = shape_.layer(n);
    return {keys(n, head).data + capacity_ * layer.key_words(),
            capacity_ * kPanel * layer.value_words() / layer.value_dim(), kPanel};
  }
  // Before positions [begin, end) are written: products of bfloat16 take 32 positions at a time, so what
  // follows the last must be finite.
  void clear_after(int64_t begin, int64_t end) {
    const int64_t step = end / kStep * kStep;
    if (step < begin || step == end) return;  // cleared before, or full
    for (int64_t n = 0; n < static_cast<int64_t>(shape_.layers.size()); ++n) {
      const CacheShape::Layer& layer = shape_.layer(n);
      for (int64_t head = 0; head < layer.heads && layer.halves; ++head) {
        const Panels v = values(n, head);
        for (int64_t p = 0; p < layer.value_dim() / kPanel; ++p) {
          std::fill_n(writable(v) + p * v.panel_stride + step / 2 * kPanel, kStep / 2 * kPanel, 0.0f);
        }
      }
    }
  }
  // Keeps the key and the value [head_dim] of a position.
  void write(int64_t n, int64_t head, int64_t position, const float* key, const float* value) {
    const CacheShape::Layer& layer = shape_.layer(n);
    const Panels k = keys(n, head), v = values(n, head);
    if (layer.halves) return write_halves(layer, k, v, position, key, value);
    float* const panel = writable(k) + position / kPanel * k.panel_stride + position % kPanel;
    for (int64_t j = 0; j < layer.head_dim; ++j) panel[j * kPanel] = key[j];
    float* row = writable(v) + position * kPanel;
    for (int64_t j = 0; j < layer.value_dim(); j += kPanel, row += v.panel_stride) {
      const int64_t count = layer.head_dim - j;
      if (count >= kPanel) {
        std::copy_n(value + j, kPanel, row);  // of a fixed length: needs no call
      } else {
        std::fill_n(std::copy_n(value + j, count, row), kPanel - count, 0.0f);
      }
    }
  }

  // What a layer's convolution keeps of the last positions, a row for each in turn.
  float* recent(int64_t n) { return recent_.data() + shape_.layer(n).recent; }

  // [H] of the last token, where an item asked for it.
  std::vector<float> hidden;

 private:
  static constexpr int64_t kFirst = 64;             // positions that are worth a block of memory
  static constexpr int64_t kStep = 2 * kStepWords;  // that capacities are a multiple of

  static int64_t whole(int64_t positions) { return (positions + kStep - 1) / kStep * kStep; }
  static float* writable(const Panels& p) { return const_cast<float*>(p.data); }

  static void write_halves(const CacheShape::Layer& layer, const Panels& k, const Panels& v, int64_t position,
                           const float* key, const float* value) {
    const int64_t keys = 2 * layer.key_words(), values = layer.value_dim();
    static thread_local Buffer<uint16_t> rounded;
    rounded.reserve(keys);
    std::fill_n(rounded.data(), keys, uint16_t{0});
    kernels().round_bf16(key, rounded.data(), layer.head_dim);
    auto* to =
        reinterpret_cast<uint16_t*>(writable(k) + position / kPanel * k.panel_stride + position % kPanel);
    for (int64_t j = 0; j < keys; ++j) to[j / 2 * 2 * kPanel + j % 2] = rounded[j];
    std::fill_n(rounded.data(), values, uint16_t{0});
    kernels().round_bf16(value, rounded.data(), layer.head_dim);
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
