// Weights of few bits in the layout of the tile kernels: products unpack them a step at a time, in the
// caches.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/kernels.h"
#include "kernels/quant.h"

namespace rlt {

// count ≤ 16 rows of a weight, which follow each other.
struct QuantRows {
  Quant quant;
  const uint8_t* rows;
  int64_t count;
};

// A panel is blocks of k as FewBits has them: the outputs' scales and addends, then for k in steps of 8 (4
// where values are bytes) 64 bytes. Of two rows of k, floats are ordered as quant_impl.h says: they are 32
// bytes, or the same four bits of 16 words for the first 16 and the next ones for the others. Outputs that
// there are not, and k behind the last, are zeros.
class QuantPanels {
 public:
  QuantPanels() = default;
  // Copies panels of `in` values a row.
  QuantPanels(const std::vector<QuantRows>& panels, int64_t in);

  bool empty() const { return panels_.empty(); }
  int64_t bytes() const { return memory_.size(); }
  // k that a step begins and ends at, unless it ends the panel.
  static constexpr int64_t kStep = 128;
  // Writes k [begin, end) of a panel as multiply_bf16 (kernels.h) takes it, end at most whole steps of words.
  // Those from there on are fetched meanwhile, or the beginning of panel `next` where there are no more.
  void unpack(int64_t panel, int64_t begin, int64_t end, int64_t next, uint16_t* out) const;

 private:
  struct Panel {
    FewBits by;
    int64_t offset;
  };
  std::vector<Panel> panels_;
  int64_t width_ = 0;  // k of a panel
  Buffer<uint8_t> memory_;
};

}  // namespace rlt
