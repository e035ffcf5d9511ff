#include "kernels/quant_panels.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/gemm.h"
#include "kernels/parallel.h"
#include "kernels/tiles.h"

namespace rlt {
namespace {

constexpr float kCounted[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr float kCentred[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

FewBits kind_of(Quant quant) {
  switch (quant) {
    case Quant::kInt8:
      return {true, false, false, false, QuantPanels::kStep, nullptr, kInt8Factor, 0, 1, 0};
    case Quant::kNF4:
      return {false, false, false, false, 64, kNF4Values, 1, 0, 1, 0};
    case Quant::kQ4_0:
      return {false, false, true, true, 32, kCentred, 1, 0, 1, 0};
    case Quant::kQ4_1:
      return {false, true, true, true, 32, kCounted, 1, 0, 1, 0};
    case Quant::kQ8_0:
      return {true, false, true, false, 32, nullptr, 1, 0, 1, 0};
    case Quant::kQ4_K:  // scales are products of two numbers
      return {false, true, false, true, 32, kCounted, 1, 0, 1, 0};
    default:
      return {true, false, false, false, 16, nullptr, 1, 0, 1, 0};
  }
}

// For panels of k values, which whole blocks hold.
FewBits bits_of(Quant quant, bool rounds, int64_t k) {
  FewBits by = kind_of(quant);
  by.rounds = rounds;
  while (k % by.values != 0) by.values /= 2;
  by.block = kPanel * (by.halves ? 2 : 4) * (by.adds ? 2 : 1) + by.values * kPanel / (by.bytes ? 1 : 2);
  return by;
}

bool by_rows() { return kernels().few_layout == FewLayout::kRows; }

// From a panel's first block to that of value k.
int64_t bytes_of(const FewBits& by, int64_t k) { return k / by.values * by.together * by.block; }

// Output r's part of a block of n values.
void put_values(const FewBits& by, const int8_t* q, int64_t n, int64_t r, uint8_t* to) {
  const bool in_rows = by_rows();
  const int64_t run = std::min<int64_t>(by.values, 32);
  const auto byte_at = [&](int64_t i) -> uint8_t& { return to[i / 64 * 64 * by.together + i % 64]; };
  const auto four = [&](int64_t byte, int64_t high, int8_t value) {
    uint8_t& both = byte_at(byte);
    both = static_cast<uint8_t>(both | (value & 15) << (high * 4));
  };
  for (int64_t k = 0; k < n; ++k) {
    // Among the 32 floats of two rows of k.
    const int64_t at = kernels().few_layout == FewLayout::kPairs ? 2 * r + k % 2 : k % 2 * kPanel + r;
    if (by.bytes && in_rows) {
      byte_at(k / run * run * kPanel + r * run + k % run) =
          static_cast<uint8_t>(q[k] + (by.halves ? 128 : 0));
    } else if (by.bytes) {
      byte_at(k / 2 * 2 * kPanel + at) = static_cast<uint8_t>(q[k]);
    } else if (in_rows) {
      four(k / 32 * 32 * kPanel / 2 + r / 4 * 64 + k % 32 * 2 + r % 4 / 2, r % 2, q[k]);
    } else if (kernels().few_layout == FewLayout::kBytes && !by.counts) {
      const int64_t line = k % 8 / 2, lane = at % 8;
      four(k / 8 * 64 + line / 2 * 32 + lane / 4 * 16 + at / 8 * 4 + lane % 4, line % 2, q[k]);
    } else {
      const int64_t nibble = k % 8 / 2 * 2 + at / kPanel, word = at % kPanel;
      four(k / 8 * 64 + 4 * word + nibble / 2, nibble % 2, q[k]);
    }
  }
}

void pack_rows(const FewBits& by, const QuantRows& from, int64_t in, uint8_t* blocks) {
  const size_t number = by.halves ? 2 : 4;  // bytes
  const int64_t row_bytes = format_of(from.quant).row_bytes(in),
                addends = kPanel * static_cast<int64_t>(number), scales = by.adds ? 2 * addends : addends;
  QuantParts parts;
  for (int64_t first = 0; first < in; first += by.values, blocks += by.together * by.block) {
    const int64_t n = std::min(by.values, in - first);
    uint8_t *const numbers = blocks + by.index * scales, *const values =
                                                             blocks + by.together * scales + by.index * 64;
    std::memset(numbers, 0, static_cast<size_t>(scales));
    for (int64_t i = 0; i < by.block - scales; i += 64) std::memset(values + i * by.together, 0, 64);
    for (int64_t r = 0; r < from.count; ++r) {
      split_block(from.quant, from.rows + r * row_bytes, first, n, &parts);
      std::memcpy(numbers + r * number, &parts.scale, number);
      if (by.adds) std::memcpy(numbers + addends + r * number, &parts.addend, number);
      put_values(by, parts.q, n, r, values);
    }
  }
}

}  // namespace

QuantPanels::QuantPanels(const std::vector<QuantRows>& panels, int64_t in, bool rounds)
    : width_(2 * words_of(in)) {
  if (!rounds && !few_are_floats()) throw std::logic_error("these kernels multiply few bits as bfloat16");
  const auto count = static_cast<int64_t>(panels.size());
  int64_t size = 0;
  for (int64_t p = 0; p < count;) {
    FewBits by = bits_of(panels[static_cast<size_t>(p)].quant, rounds, width_);
    const bool two = kernels().multiply_few.together == 2 && p + 1 < count &&
                     panels[static_cast<size_t>(p)].quant == panels[static_cast<size_t>(p + 1)].quant;
    if (two) by.together = 2;
    for (by.index = 0; by.index < by.together; ++by.index, ++p) panels_.push_back({by, size});
    size += bytes_of(by, width_);
  }
  memory_ = WeightMemory(size);
  parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Panel& panel = panels_[static_cast<size_t>(p)];
      pack_rows(panel.by, panels[static_cast<size_t>(p)], in,
                reinterpret_cast<uint8_t*>(memory_.data()) + panel.offset);
    }
  });
}

FewPanel QuantPanels::at(int64_t panel, int64_t next) const {
  const auto& [by, offset] = panels_[static_cast<size_t>(panel)];
  const bool more = next < static_cast<int64_t>(panels_.size());
  return {&by, blocks() + offset, more ? panels_[static_cast<size_t>(next)].offset - offset : 0};
}

void QuantPanels::unpack(int64_t panel, int64_t begin, int64_t end, int64_t next, void* out) const {
  FewPanel from = at(panel, next);
  const int64_t skipped = bytes_of(*from.by, begin), bytes = bytes_of(*from.by, end) - skipped;
  from.blocks += skipped;
  if (!by_rows()) {
    const int64_t ahead = end < width_ ? bytes : std::max<int64_t>(0, from.ahead - skipped);
    kernels().unpack(*from.by, from.blocks, end - begin, ahead, out, 0);
    return;
  }
  alignas(64) float rows[kPanel * kStep / 2];  // words of two values each
  auto* words = static_cast<float*>(out);
  for (int64_t k = begin; k < end; k += kStep, words += kPanel * kStep / 2) {
    const int64_t n = std::min(kStep, end - k);
    from.blocks = kernels().unpack(*from.by, from.blocks, n, from.ahead, rows, kStep);
    transpose(kPanel, n / 2, {rows, kStep / 2}, words, kPanel);
  }
}

}  // namespace rlt
