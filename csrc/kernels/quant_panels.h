// Weights of few bits in the layout of the tile kernels: products unpack them a step at a time, in the
// caches.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/quant.h"
#include "kernels/weight_memory.h"

namespace rlt {

// count ≤ 16 rows of a weight, which follow each other.
struct QuantRows {
  Quant quant;
  const uint8_t* rows;
  int64_t count;
};

// Whether layers multiply by weights of few bits as float32 (quant.h).
inline bool few_are_floats() { return !kernels().multiply_pairs; }

// A panel is blocks of k as FewBits has them: the outputs' scales and addends, then their values, in the
// order in which kernels() unpack them, so panels fit the kernels that were in use when they were made:
//   - kRows (quant_rows_impl.h): for each 32 of k (16 if a block has no more) bytes by output, or words, each
//     with the four bits of four outputs for an element of k;
//   - kPairs, kPlain, kBytes (quant_impl.h): for k in steps of 8 (4 if values are bytes) 64 bytes. Two rows
//     of k are 32 bytes, or the same four bits of 16 words for the first 16 floats and the next four for the
//     others; with kPairs the two of an output are side by side. With kBytes four bits of a table are halves
//     of 32 bytes instead, the low ones for two rows of k and the high ones for the next two: for each 8
//     outputs of a row the first four bytes of a quarter of 16, and of the next 16.
// Missing outputs, and k past the last, are zeros. Panels of one type that follow each other are kept
// together if multiply_few takes them so.
class QuantPanels {
 public:
  QuantPanels() = default;
  // Copies panels of `in` values a row. rounds as in FewBits.
  QuantPanels(const std::vector<QuantRows>& panels, int64_t in, bool rounds);

  bool empty() const { return panels_.empty(); }
  int64_t bytes() const { return memory_.size(); }
  // k that a step begins and ends at, unless it ends the panel.
  static constexpr int64_t kStep = 128;
  // Writes k [begin, end) of a panel as multiply_bf16 (kernels.h) takes it, or multiply_f32 where nothing is
  // rounded, end at most whole steps of words. Prefetches what comes next: of this panel, or of panel `next`,
  // if there is one.
  void unpack(int64_t panel, int64_t begin, int64_t end, int64_t next, void* out) const;
  // The whole panel for multiply_few.
  FewPanel at(int64_t panel, int64_t next) const;

 private:
  const uint8_t* blocks() const { return reinterpret_cast<const uint8_t*>(memory_.data()); }

  struct Panel {
    FewBits by;
    int64_t offset;
  };
  std::vector<Panel> panels_;
  int64_t width_ = 0;  // k of a panel
  WeightMemory memory_;
};

}  // namespace rlt
