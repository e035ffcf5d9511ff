// How matrices are cut for the products of tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernels.h"

namespace rlt {

// Bytes of weights that one pass over the rows should take: they, as many that come next, and a tile's rows
// fit a second-level cache.
constexpr int64_t kCacheBytes = 192 << 10;

// Panels of so many bytes that are best multiplied at once, a multiple of what a tile takes.
inline int64_t panels_in_cache(int64_t panel_bytes, int64_t multiple) {
  return std::max(multiple, kCacheBytes / std::max<int64_t>(1, panel_bytes) / multiple * multiple);
}

inline int64_t panels_of(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// Rows are cut into tiles of nearly equal height: 8 into 4 and 4, not into 6 and 2.
inline int64_t tiles_of(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
inline int64_t tile_begin(int64_t rows, int64_t tiles, int64_t i) { return rows * i / tiles; }

}  // namespace rlt
