// Shared by kernels that process rows: packs of elements, sums over a row in a fixed order, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cuda/kernels/kernels.h"

namespace rlt::cuda {

constexpr int kWarp = 32;
constexpr int kBlock = 256;  // threads

// N elements, read or written together.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T v[N];
};

template <int N>
__device__ Pack<float, N> load(const float* x) {
  return *reinterpret_cast<const Pack<float, N>*>(x);
}

__device__ inline void put(float x, float& y) { y = x; }
__device__ inline void put(float x, __nv_bfloat16& y) { y = __float2bfloat16(x); }
__device__ inline void put(float x, __half& y) { y = __float2half(x); }

// Converts x to the type of y, rounded to nearest.
template <typename T, int N>
__device__ void store(T* y, const Pack<float, N>& x) {
  Pack<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) put(x.v[i], out.v[i]);
  *reinterpret_cast<Pack<T, N>*>(y) = out;
}

// Sums over the Threads threads of a row; every thread gets the result. A row has a warp or a whole block.
// Each call site has its own shared memory.
template <int Threads>
__device__ float row_sum(float x, float (&room)[kBlock / kWarp]) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  if (Threads == kWarp) return x;
  if (threadIdx.x % kWarp == 0) room[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Threads / kWarp; ++w) sum += room[w];
  return sum;
}

// The segment that contains a row: the last one that begins at or before it.
__device__ inline int64_t segment_of(const int32_t* borders, int64_t segments, int64_t row) {
  int64_t low = 0, high = segments;
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

// Throws if the last launch failed, for example because the device cannot run this code.
inline void check_launch(const char* what) {
  if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
  }
}

inline cudaStream_t on(Stream stream) { return static_cast<cudaStream_t>(stream); }

// Whether all of these pointers (null allowed) are aligned for packs of four.
template <typename... P>
bool aligned(const P*... p) {
  return ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);
}

// Chooses how to process rows of this width: calls body with the number of elements per thread, as a
// std::integral_constant, and the number of threads per row.
template <typename Body>
void with_row(int64_t width, bool packs, const Body& body) {
  using std::integral_constant;
  if (width <= 32 * kWarp) {
    packs ? body(integral_constant<int, 4>(), integral_constant<int, kWarp>())
          : body(integral_constant<int, 1>(), integral_constant<int, kWarp>());
  } else {
    packs ? body(integral_constant<int, 4>(), integral_constant<int, kBlock>())
          : body(integral_constant<int, 1>(), integral_constant<int, kBlock>());
  }
}

// Calls body with a null pointer of the C++ type of t.
template <typename Body>
void with_type(Type t, const Body& body) {
  switch (t) {
    case Type::kF32:
      return body(static_cast<float*>(nullptr));
    case Type::kBF16:
      return body(static_cast<__nv_bfloat16*>(nullptr));
    case Type::kF16:
      return body(static_cast<__half*>(nullptr));
  }
}

}  // namespace rlt::cuda
