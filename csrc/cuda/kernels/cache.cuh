// Shared by the kernels that write and read pages.
#pragma once

#include "cuda/kernels/row.cuh"

namespace rlt::cuda {

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }

// Location of a position: index of its page in the list, and slot in the page.
struct Spot {
  int page, slot;
};

__device__ inline Spot find(const Place& place, int position) {
  const bool in_prefix = position < place.prefix_length;
  const int at = in_prefix ? position : position - place.prefix_length;
  return {(in_prefix ? place.prefix_page : place.tail_page) + at / int{kPage}, at % int{kPage}};
}

// Offset in a page of the keys (side 0) or values (side 1) of a head.
__device__ inline int64_t before(const Shape& s, int64_t layer, int64_t side, int64_t head) {
  return ((layer * 2 + side) * s.kv_heads + head) * kPage * s.head_dim;
}

}  // namespace rlt::cuda
