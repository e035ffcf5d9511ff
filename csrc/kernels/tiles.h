// How matrices are cut for the products of tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernels.h"

namespace rlt {

// How many panels of panel_bytes each to multiply at once: a multiple of `multiple` for which these panels,
// the next ones and a tile's rows fit the second-level cache.
int64_t panels_in_cache(int64_t panel_bytes, int64_t multiple);

// How many panels take at most `bytes`: a multiple of `multiple`, at least one.
inline int64_t panels_in(int64_t bytes, int64_t panel_bytes, int64_t multiple) {
  return std::max(multiple, bytes / std::max<int64_t>(1, panel_bytes) / multiple * multiple);
}

inline int64_t panels_of(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// Words of two bfloat16 that k elements take, filled up to whole steps.
inline int64_t words_of(int64_t k) { return (k + 2 * kStepWords - 1) / (2 * kStepWords) * kStepWords; }

// Rows are cut into tiles of nearly equal height: 8 into 4 and 4, not into 6 and 2.
inline int64_t tiles_of(int64_t rows, const Product& by) { return (rows + by.rows - 1) / by.rows; }
inline int64_t tile_begin(int64_t rows, int64_t tiles, int64_t i) { return rows * i / tiles; }

}  // namespace rlt
