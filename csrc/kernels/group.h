// Linear layers of the same input, side by side: one product of tiles, with bias, adapters, activation and
// residual added while a tile is at hand.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "kernels/quant_panels.h"
#include "kernels/tiles.h"

namespace rlt {

enum class Element { kF32, kBF16, kF16 };

// Weights as panels of 16 outputs, [in][16] each; BF16 as multiply_bf16 has it. BF16 and few bits are filled
// up with zeros to whole steps of words.
struct Group {
  Element element = Element::kF32;
  int64_t in = 0, panels = 0;
  const void* weights = nullptr;
  const float* bias = nullptr;  // [16·panels] or null
  // Writes panels [begin, end) to memory of the calling thread, where weights are not kept as panels and are
  // null.
  std::function<void(int64_t begin, int64_t end, void* panels)> unpack = nullptr;
  const QuantPanels* quant = nullptr;  // F32 or BF16 in few bits; weights are null then

  int64_t element_size() const { return element == Element::kF32 ? 4 : 2; }
  int64_t padded_in() const { return element == Element::kBF16 || quant != nullptr ? 2 * words_of(in) : in; }
  int64_t panel_bytes() const { return kPanel * padded_in() * element_size(); }
};

// What adapters add: u = x·Aᵀ for the A of all layers side by side, then for each panel its layer's part of u
// times scale·Bᵀ.
struct LowRank {
  struct Share {
    int64_t column, rank, offset;  // of u; rank 0: the layer has no adapter
  };
  int64_t width = 0;              // columns of u, a multiple of 16
  const float* a = nullptr;       // their panels [in][16]
  const Share* shares = nullptr;  // [panels]
  const float* b = nullptr;       // [rank][16] at each panel's offset
};

// Rows [begin, end) that an adapter adds to.
struct AdaptedRows {
  int64_t begin, end;
  const LowRank* adapter;
};

constexpr int32_t kNoActivation = -1;

// What becomes of the sums: y = activation(sums) + residual, or y = activation(gate)·up + residual for panels
// that alternate between gate and up, which leaves half as many columns.
struct Finish {
  int32_t activation = kNoActivation;
  bool gated = false;
  Matrix residual{nullptr, 0};
};

// A panel from count of its layer's outputs, rows of [in] each, filled up with zeros; 2 or 4 bytes an
// element.
void pack_panel(const Group& group, const void* rows, int64_t count, void* panel);

// y [rows, 16·panels, or half of it where gated] from x [rows, in], by all threads. The residual may be y.
// Which rows are beside a row changes none of its bits.
void multiply_group(int64_t rows, Matrix x, const Group& group, const std::vector<AdaptedRows>& adapted,
                    const Finish& finish, float* y, int64_t y_stride);

// What multiply_group makes of x first: rows rounded as words where the product takes pairs, and each
// adapter's u.
struct Prepared {
  Matrix x;
  const float* u = nullptr;
  int64_t u_stride = 0;
};
// The same of rows that are prepared already; the adapters' a is not read.
void multiply_prepared(int64_t rows, const Prepared& x, const Group& group,
                       const std::vector<AdaptedRows>& adapted, const Finish& finish, float* y,
                       int64_t y_stride);

}  // namespace rlt
