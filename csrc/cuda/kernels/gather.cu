// Gathers the paged keys and values of sequences into contiguous tensors.
#include "cuda/kernels/cache.cuh"

namespace rlt::cuda {
namespace {

// One block per row. T is a 16-byte piece, or an element if heads are not a multiple of 16 bytes.
template <typename T>
__global__ void gather_kernel(const Place* places, void* const* pages, const int32_t* borders, int64_t layer,
                              int64_t kv_heads, int64_t pieces, T* k, T* v, int64_t sequences) {
  const int64_t row = blockIdx.x, s = segment_of(borders, sequences, row);
  const Spot spot = find(places[s], static_cast<int>(row - borders[s]));
  const T* page = static_cast<const T*>(pages[spot.page]);
  for (int64_t i = threadIdx.x; i < 2 * kv_heads * pieces; i += blockDim.x) {
    const int64_t side = i / (kv_heads * pieces), within = i % (kv_heads * pieces), head = within / pieces,
                  piece = within % pieces;
    const T value = page[(((layer * 2 + side) * kv_heads + head) * kPage + spot.slot) * pieces + piece];
    (side == 0 ? k : v)[row * kv_heads * pieces + within] = value;
  }
}

template <typename T>
void start(cudaStream_t stream, const Place* places, void* const* pages, const int32_t* borders, Shape shape,
           int64_t layer, void* k, void* v, int64_t sequences, int64_t total, int64_t bytes) {
  gather_kernel<T><<<static_cast<unsigned>(total), kBlock, 0, stream>>>(
      places, pages, borders, layer, shape.kv_heads, bytes / static_cast<int64_t>(sizeof(T)),
      static_cast<T*>(k), static_cast<T*>(v), sequences);
}

}  // namespace

void gather(Stream stream, const Place* places, void* const* pages, const int32_t* borders, Shape shape,
            int64_t layer, void* k, void* v, int64_t sequences, int64_t total) {
  if (total == 0) return;
  const int64_t bytes = shape.head_dim * (shape.type == Type::kF32 ? 4 : 2);
  if (bytes % 16 == 0) {
    start<uint4>(on(stream), places, pages, borders, shape, layer, k, v, sequences, total, bytes);
  } else {
    start<uint16_t>(on(stream), places, pages, borders, shape, layer, k, v, sequences, total, bytes);
  }
  check_launch("gather");
}

}  // namespace rlt::cuda
