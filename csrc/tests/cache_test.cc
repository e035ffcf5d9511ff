// Keys and values of the CPU's engine: what is written is found again, as floats and as bfloat16, before and
// after growth.
#include "engine/cpu/cache.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"

namespace {

using rlt::kPanel;
using rlt::engine::CacheShape;
using rlt::engine::CpuSegment;

// Numbers that bfloat16 holds.
float key_at(int64_t layer, int64_t head, int64_t position, int64_t j) {
  return static_cast<float>((layer * 7 + head * 5 + position * 3 + j) % 128);
}
float value_at(int64_t layer, int64_t head, int64_t position, int64_t j) {
  return -1 - key_at(layer, head, position, j);
}

// Element (k, column) of a panel whose words have two elements in halves.
float element(const float* panel, bool halves, int64_t k, int64_t column) {
  if (!halves) return panel[k * kPanel + column];
  const auto* words = reinterpret_cast<const uint32_t*>(panel);
  const uint32_t word = words[k / 2 * kPanel + column], bits = k % 2 == 0 ? word << 16 : word & 0xffff0000U;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

TEST(cache_keeps_what_is_written_while_it_grows) {
  for (const int64_t d : {64, 20}) {
    CacheShape shape;
    for (const bool halves : {false, true, true}) shape.add_layer(2, halves ? d : d + 3, halves, 0);
    shape.add_layer(0, d, false, 0);
    CpuSegment segment(shape);
    segment.resize(300);
    std::vector<float> key(static_cast<size_t>(d + 3)), value(key.size());
    const auto check = [&](int64_t count) {
      int64_t wrong = 0;
      for (int64_t layer = 0; layer < 3; ++layer) {
        const bool halves = shape.layer(layer).halves;
        const int64_t d = shape.layer(layer).head_dim;
        for (int64_t head = 0; head < 2; ++head) {
          const rlt::Panels k = segment.keys(layer, head), v = segment.values(layer, head);
          for (int64_t p = 0; p < count; ++p) {
            for (int64_t j = 0; j < d; ++j) {
              wrong += element(k.data + p / kPanel * k.panel_stride, halves, j, p % kPanel) !=
                       key_at(layer, head, p, j);
              wrong += element(v.data + j / kPanel * v.panel_stride, halves, p, j % kPanel) !=
                       value_at(layer, head, p, j);
            }
          }
        }
      }
      EXPECT_EQUAL(wrong, 0);
    };
    for (int64_t p = 0; p < 200; ++p) {
      segment.grow(p + 1);
      segment.clear_after(p, p + 1);
      for (int64_t layer = 0; layer < 3; ++layer) {
        for (int64_t head = 0; head < 2; ++head) {
          for (int64_t j = 0; j < shape.layer(layer).head_dim; ++j) {
            key[static_cast<size_t>(j)] = key_at(layer, head, p, j);
            value[static_cast<size_t>(j)] = value_at(layer, head, p, j);
          }
          segment.write(layer, head, p, key.data(), value.data());
        }
      }
      if (p == 63 || p == 64 || p == 199) check(p + 1);
    }
    // What a product of 32 positions reads behind the last is finite.
    const rlt::Panels v = segment.values(1, 1);
    for (int64_t p = 200; p < 224; ++p) EXPECT_EQUAL(element(v.data, true, p, 3), 0.0f);
  }
}

}  // namespace
