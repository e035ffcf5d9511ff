// Norms. A row is read once from memory and then from the cache, by one warp for up to 1024 features, else by
// one block.
#include "cuda/kernels/row.cuh"

namespace rlt::cuda {
namespace {

// This thread's row, and its index in the row.
template <int Threads>
__device__ int64_t row_of() {
  return static_cast<int64_t>(blockIdx.x) * (kBlock / Threads) + threadIdx.x / Threads;
}

template <int N, int Threads>
__device__ int64_t first() {
  return threadIdx.x % Threads * N;
}

template <int N, int Threads, typename Y>
__global__ void rms_norm_kernel(Matrix x, const float* weight, float shift, float eps, Y* y, float* rstd,
                                int64_t rows, int64_t width) {
  __shared__ float room[kBlock / kWarp];
  const int64_t row = row_of<Threads>();
  if (row >= rows) return;
  const float* in = x.data + row * x.stride;
  float squares = 0;
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    const Pack<float, N> a = load<N>(in + j);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += a.v[i] * a.v[i];
  }
  const float scale = 1.0f / sqrtf(row_sum<Threads>(squares, room) / static_cast<float>(width) + eps);
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    Pack<float, N> a = load<N>(in + j);
    const Pack<float, N> w = load<N>(weight + j);
#pragma unroll
    for (int i = 0; i < N; ++i) a.v[i] = a.v[i] * scale * (shift + w.v[i]);
    store(y + row * width + j, a);
  }
  if (rstd != nullptr && threadIdx.x % Threads == 0) rstd[row] = scale;
}

// With g = grad · (shift + weight): rstd · (g - x · rstd² · mean(g · x)).
template <int N, int Threads>
__global__ void rms_norm_backward_kernel(Matrix grad, Matrix x, const float* weight, float shift,
                                         const float* rstd, float* grad_x, int64_t rows, int64_t width) {
  __shared__ float room[kBlock / kWarp];
  const int64_t row = row_of<Threads>();
  if (row >= rows) return;
  const float *in = x.data + row * x.stride, *of_y = grad.data + row * grad.stride;
  float products = 0;
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    const Pack<float, N> a = load<N>(in + j), g = load<N>(of_y + j), w = load<N>(weight + j);
#pragma unroll
    for (int i = 0; i < N; ++i) products += g.v[i] * (shift + w.v[i]) * a.v[i];
  }
  const float scale = rstd[row];
  const float pull = row_sum<Threads>(products, room) / static_cast<float>(width) * scale * scale;
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    const Pack<float, N> a = load<N>(in + j), w = load<N>(weight + j);
    Pack<float, N> g = load<N>(of_y + j);
#pragma unroll
    for (int i = 0; i < N; ++i) g.v[i] = scale * (g.v[i] * (shift + w.v[i]) - a.v[i] * pull);
    store(grad_x + row * width + j, g);
  }
}

template <int N>
__device__ Pack<float, N> sum_at(const float* x, const float* residual, int64_t j) {
  Pack<float, N> a = load<N>(x + j);
  if (residual == nullptr) return a;
  const Pack<float, N> b = load<N>(residual + j);
#pragma unroll
  for (int i = 0; i < N; ++i) a.v[i] += b.v[i];
  return a;
}

template <int N, int Threads, typename Y>
__global__ void layer_norm_kernel(Matrix x, const float* residual, const float* weight, const float* bias,
                                  float eps, Y* y, float* sum, float* mean, float* rstd, int64_t rows,
                                  int64_t width) {
  __shared__ float room[2][kBlock / kWarp];
  const int64_t row = row_of<Threads>();
  if (row >= rows) return;
  const float *in = x.data + row * x.stride, *more = residual == nullptr ? nullptr : residual + row * width;
  float total = 0, squares = 0;
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    const Pack<float, N> a = sum_at<N>(in, more, j);
#pragma unroll
    for (int i = 0; i < N; ++i) total += a.v[i];
    if (sum != nullptr) store(sum + row * width + j, a);
  }
  const float m = row_sum<Threads>(total, room[0]) / static_cast<float>(width);
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    const Pack<float, N> a = sum_at<N>(in, more, j);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += (a.v[i] - m) * (a.v[i] - m);
  }
  const float scale = 1.0f / sqrtf(row_sum<Threads>(squares, room[1]) / static_cast<float>(width) + eps);
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    Pack<float, N> a = sum_at<N>(in, more, j);
    const Pack<float, N> w = load<N>(weight + j), b = load<N>(bias + j);
#pragma unroll
    for (int i = 0; i < N; ++i) a.v[i] = (a.v[i] - m) * scale * w.v[i] + b.v[i];
    store(y + row * width + j, a);
  }
  if (threadIdx.x % Threads != 0) return;
  if (mean != nullptr) mean[row] = m;
  if (rstd != nullptr) rstd[row] = scale;
}

// With z = (sum - mean) · rstd and g = grad · weight: rstd · (g - mean(g) - z · mean(g · z)).
template <int N, int Threads>
__global__ void layer_norm_backward_kernel(const float* grad, const float* sum, const float* weight,
                                           const float* mean, const float* rstd, float* grad_x, int64_t rows,
                                           int64_t width) {
  __shared__ float room[2][kBlock / kWarp];
  const int64_t row = row_of<Threads>();
  if (row >= rows) return;
  const float *in = sum + row * width, *of_y = grad + row * width, m = mean[row], scale = rstd[row];
  float gs = 0, gzs = 0;
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    const Pack<float, N> a = load<N>(in + j), g = load<N>(of_y + j), w = load<N>(weight + j);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      gs += g.v[i] * w.v[i];
      gzs += g.v[i] * w.v[i] * ((a.v[i] - m) * scale);
    }
  }
  const float of_g = row_sum<Threads>(gs, room[0]) / static_cast<float>(width),
              of_gz = row_sum<Threads>(gzs, room[1]) / static_cast<float>(width);
  for (int64_t j = first<N, Threads>(); j < width; j += Threads * N) {
    const Pack<float, N> a = load<N>(in + j), w = load<N>(weight + j);
    Pack<float, N> g = load<N>(of_y + j);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      g.v[i] = scale * (g.v[i] * w.v[i] - of_g - (a.v[i] - m) * scale * of_gz);
    }
    store(grad_x + row * width + j, g);
  }
}

template <int Threads>
unsigned blocks(int64_t rows) {
  return static_cast<unsigned>((rows + kBlock / Threads - 1) / (kBlock / Threads));
}

}  // namespace

void rms_norm(Stream stream, Matrix x, const float* weight, bool plus_one, double eps, void* y, Type y_type,
              float* rstd, int64_t rows, int64_t width) {
  if (rows == 0) return;
  const bool packs = width % 4 == 0 && x.stride % 4 == 0 && aligned(x.data, weight, static_cast<char*>(y));
  with_type(y_type, [&](auto* of_type) {
    with_row(width, packs, [&](auto n, auto threads) {
      rms_norm_kernel<n.value, threads.value><<<blocks<threads.value>(rows), kBlock, 0, on(stream)>>>(
          x, weight, plus_one ? 1.0f : 0.0f, static_cast<float>(eps), static_cast<decltype(of_type)>(y), rstd,
          rows, width);
    });
  });
  check_launch("rms_norm");
}

void rms_norm_backward(Stream stream, Matrix grad, Matrix x, const float* weight, bool plus_one,
                       const float* rstd, float* grad_x, int64_t rows, int64_t width) {
  if (rows == 0) return;
  const bool packs = width % 4 == 0 && x.stride % 4 == 0 && grad.stride % 4 == 0 &&
                     aligned(x.data, grad.data, weight, grad_x);
  with_row(width, packs, [&](auto n, auto threads) {
    rms_norm_backward_kernel<n.value, threads.value><<<blocks<threads.value>(rows), kBlock, 0, on(stream)>>>(
        grad, x, weight, plus_one ? 1.0f : 0.0f, rstd, grad_x, rows, width);
  });
  check_launch("rms_norm_backward");
}

void layer_norm(Stream stream, Matrix x, const float* residual, const float* weight, const float* bias,
                double eps, void* y, Type y_type, float* sum, float* mean, float* rstd, int64_t rows,
                int64_t width) {
  if (rows == 0) return;
  const bool packs = width % 4 == 0 && x.stride % 4 == 0 &&
                     aligned(x.data, residual, weight, bias, static_cast<char*>(y), sum);
  with_type(y_type, [&](auto* of_type) {
    with_row(width, packs, [&](auto n, auto threads) {
      layer_norm_kernel<n.value, threads.value><<<blocks<threads.value>(rows), kBlock, 0, on(stream)>>>(
          x, residual, weight, bias, static_cast<float>(eps), static_cast<decltype(of_type)>(y), sum, mean,
          rstd, rows, width);
    });
  });
  check_launch("layer_norm");
}

void layer_norm_backward(Stream stream, const float* grad, const float* sum, const float* weight,
                         const float* mean, const float* rstd, float* grad_x, int64_t rows, int64_t width) {
  if (rows == 0) return;
  with_row(width, width % 4 == 0 && aligned(grad, sum, weight, grad_x), [&](auto n, auto threads) {
    layer_norm_backward_kernel<n.value, threads.value>
        <<<blocks<threads.value>(rows), kBlock, 0, on(stream)>>>(grad, sum, weight, mean, rstd, grad_x, rows,
                                                                 width);
  });
  check_launch("layer_norm_backward");
}

}  // namespace rlt::cuda
