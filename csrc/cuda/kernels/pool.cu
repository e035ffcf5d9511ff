// Sums of listed rows, and the mean of each sequence's rows.
#include "cuda/kernels/row.cuh"

namespace rlt::cuda {
namespace {

constexpr int kRows = kBlock / kWarp;  // rows that a block of segment_mean_kernel reads at once

__device__ float value(float x) { return x; }
__device__ float value(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float value(__half x) { return __half2float(x); }

// One block per row of y.
template <typename T>
__global__ void sum_rows_kernel(const T* x, const int32_t* begins, const int32_t* rows, float* y,
                                int64_t width) {
  const int64_t i = blockIdx.x;
  const int32_t begin = begins[i], end = begins[i + 1];
  for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
    float sum = 0;
    for (int32_t j = begin; j < end; ++j) sum += value(x[rows[j] * width + column]);
    y[i * width + column] = sum;
  }
}

// One block per segment and kWarp columns. Its warps take turns at the rows, and their sums are added in a
// fixed order.
__global__ void segment_mean_kernel(Matrix x, const int32_t* borders, float* y, int64_t width) {
  __shared__ float sums[kRows][kWarp];
  const int64_t s = blockIdx.x, column = static_cast<int64_t>(blockIdx.y) * kWarp + threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t begin = borders[s], end = borders[s + 1];
  float sum = 0;
  if (column < width) {
    for (int64_t row = begin + warp; row < end; row += kRows) sum += x.data[row * x.stride + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int w = 1; w < kRows; ++w) sum += sums[w][lane];
  y[s * width + column] = end > begin ? sum / static_cast<float>(end - begin) : 0.0f;
}

// One block per row of x.
__global__ void segment_mean_backward_kernel(const float* grad, const int32_t* borders, float* grad_x,
                                             int64_t segments, int64_t width) {
  const int64_t row = blockIdx.x, s = segment_of(borders, segments, row);
  const auto length = static_cast<float>(borders[s + 1] - borders[s]);
  for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
    grad_x[row * width + column] = grad[s * width + column] / length;
  }
}

unsigned blocks(int64_t n) { return static_cast<unsigned>(n); }

}  // namespace

void sum_rows(Stream stream, const void* x, Type type, const int32_t* begins, const int32_t* rows, float* y,
              int64_t count, int64_t width) {
  if (count == 0 || width == 0) return;
  with_type(type, [&](auto* of) {
    using T = std::remove_pointer_t<decltype(of)>;
    sum_rows_kernel<<<blocks(count), kBlock, 0, on(stream)>>>(static_cast<const T*>(x), begins, rows, y,
                                                              width);
  });
  check_launch("sum_rows");
}

void segment_mean(Stream stream, Matrix x, const int32_t* borders, float* y, int64_t segments,
                  int64_t width) {
  if (segments == 0 || width == 0) return;
  const dim3 grid(blocks(segments), blocks((width + kWarp - 1) / kWarp));
  segment_mean_kernel<<<grid, kBlock, 0, on(stream)>>>(x, borders, y, width);
  check_launch("segment_mean");
}

void segment_mean_backward(Stream stream, const float* grad, const int32_t* borders, float* grad_x,
                           int64_t rows, int64_t segments, int64_t width) {
  if (rows == 0 || width == 0) return;
  segment_mean_backward_kernel<<<blocks(rows), kBlock, 0, on(stream)>>>(grad, borders, grad_x, segments,
                                                                        width);
  check_launch("segment_mean_backward");
}

}  // namespace rlt::cuda
