// Keys and values of sequences, from their pages into one piece each.
#include <cuda_runtime.h>

#include "cuda/kernels/kernels.h"

namespace rlt::cuda {
namespace {

constexpr int kThreads = 256;

// Which sequence row is of: the last one that begins at or before it.
__device__ int64_t sequence_of(const int32_t* borders, int64_t sequences, int64_t row) {
  int64_t low = 0, high = sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (borders[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A block a row. T is a piece of 16 bytes, or an element where heads are not made of such.
template <typename T>
__global__ void gather_kernel(const Place* places, void* const* pages, const int32_t* borders, int64_t layer,
                              int64_t kv_heads, int64_t pieces, T* k, T* v, int64_t sequences) {
  const int64_t row = blockIdx.x, s = sequence_of(borders, sequences, row), position = row - borders[s];
  const Place place = places[s];
  const bool in_prefix = position < place.prefix_length;
  const int64_t at = in_prefix ? position : position - place.prefix_length;
  const T* page =
      static_cast<const T*>(pages[(in_prefix ? place.prefix_page : place.tail_page) + at / kPage]);
  for (int64_t i = threadIdx.x; i < 2 * kv_heads * pieces; i += blockDim.x) {
    const int64_t side = i / (kv_heads * pieces), within = i % (kv_heads * pieces), head = within / pieces,
                  piece = within % pieces;
    const T value = page[(((layer * 2 + side) * kv_heads + head) * kPage + at % kPage) * pieces + piece];
    (side == 0 ? k : v)[row * kv_heads * pieces + within] = value;
  }
}

template <typename T>
void start(cudaStream_t stream, const Place* places, void* const* pages, const int32_t* borders, Shape shape,
           int64_t layer, void* k, void* v, int64_t sequences, int64_t total, int64_t bytes) {
  gather_kernel<T><<<static_cast<unsigned>(total), kThreads, 0, stream>>>(
      places, pages, borders, layer, shape.kv_heads, bytes / static_cast<int64_t>(sizeof(T)),
      static_cast<T*>(k), static_cast<T*>(v), sequences);
}

}  // namespace

void gather(Stream stream, const Place* places, void* const* pages, const int32_t* borders, Shape shape,
            int64_t layer, void* k, void* v, int64_t sequences, int64_t total) {
  if (total == 0) return;
  const int64_t bytes = shape.head_dim * (shape.type == Type::kF32 ? 4 : 2);
  const auto on = static_cast<cudaStream_t>(stream);
  if (bytes % 16 == 0) {
    start<uint4>(on, places, pages, borders, shape, layer, k, v, sequences, total, bytes);
  } else {
    start<uint16_t>(on, places, pages, borders, shape, layer, k, v, sequences, total, bytes);
  }
}

}  // namespace rlt::cuda
