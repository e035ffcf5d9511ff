// Log-probabilities, entropies and ranks of tokens from rows of logits, and their gradients. One block per
// row, in one pass.
#include <cfloat>

#include "cuda/kernels/row.cuh"

namespace rlt::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
// Lower limit of log-probabilities, so that a token of probability 0 adds 0 to the entropy: e^-200 is 0 in
// float32.
constexpr float kLeast = -200;

// Maps a logit to z, and gives dz/dlogit.
struct Map {
  float in, out;  // z = out · tanh(in · logit), or out · logit if in is 0
  float curvature, inverse;

  __host__ Map(double temperature, double softcap)
      : in(static_cast<float>(softcap > 0 ? 1 / softcap : 0)),
        out(static_cast<float>(softcap > 0 ? softcap / temperature : 1 / temperature)),
        curvature(static_cast<float>(softcap > 0 ? temperature / softcap * (temperature / softcap) : 0)),
        inverse(static_cast<float>(1 / temperature)) {}
  __device__ float of(float logit) const { return out * (in > 0 ? tanhf(in * logit) : logit); }
  __device__ float slope(float z) const { return in > 0 ? (1 - curvature * z * z) * inverse : inverse; }
};

// Online softmax (Milakov & Gimelshein 2018).
struct Softmax {
  float peak = -FLT_MAX;  // not -∞: -∞ - peak must not be NaN
  float sum = 0;          // Σ exp(z - peak)
  float weighted = 0;     // Σ exp(z - peak) (z - peak)
  int above = 0;          // how many z exceed the target's

  __device__ void raise(float to) {
    const float fall = peak - to, factor = expf(fall);
    weighted = factor > 0 ? factor * (weighted + sum * fall) : 0;
    sum *= factor;
    peak = to;
  }
  __device__ void add(float z, float threshold) {
    const float below = z - peak, e = expf(below);
    sum += e;
    if (e > 0) weighted += e * below;
    above += z > threshold;
  }
  __device__ void merge(Softmax other) {
    const float top = fmaxf(peak, other.peak);
    raise(top);
    other.raise(top);
    sum += other.sum;
    weighted += other.weighted;
    above += other.above;
  }
};

__device__ Softmax from_lane(const Softmax& s, int step) {
  Softmax other;
  other.peak = __shfl_down_sync(0xffffffff, s.peak, step);
  other.sum = __shfl_down_sync(0xffffffff, s.sum, step);
  other.weighted = __shfl_down_sync(0xffffffff, s.weighted, step);
  other.above = __shfl_down_sync(0xffffffff, s.above, step);
  return other;
}

// Merges the softmaxes of a block's threads; only thread 0 gets the result.
__device__ Softmax merge_block(Softmax s) {
  __shared__ float peak[kWarps], sum[kWarps], weighted[kWarps];
  __shared__ int above[kWarps];
  for (int step = kWarp / 2; step > 0; step /= 2) s.merge(from_lane(s, step));
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) peak[warp] = s.peak, sum[warp] = s.sum, weighted[warp] = s.weighted, above[warp] = s.above;
  __syncthreads();
  if (warp != 0) return s;
  s.peak = peak[lane], s.sum = sum[lane], s.weighted = weighted[lane], s.above = above[lane];
  for (int step = kWarp / 2; step > 0; step /= 2) s.merge(from_lane(s, step));
  return s;
}

template <int N>
__global__ void token_logprobs_kernel(const float* logits, const int64_t* targets, Map map, float* logprobs,
                                      float* entropy, int64_t* rank, float* lse, int64_t vocab) {
  const int64_t row = blockIdx.x, target = targets[row];
  const float* in = logits + row * vocab;
  const bool known = target >= 0 && target < vocab;
  const float own = known ? map.of(in[target]) : NAN;
  Softmax s;
  for (int64_t j = threadIdx.x * N; j < vocab; j += kThreads * N) {
    Pack<float, N> z = load<N>(in + j);
    float top = -FLT_MAX;
#pragma unroll
    for (int i = 0; i < N; ++i) top = fmaxf(top, z.v[i] = map.of(z.v[i]));
    if (top > s.peak) s.raise(top);
#pragma unroll
    for (int i = 0; i < N; ++i) s.add(z.v[i], own);
  }
  s = merge_block(s);
  if (threadIdx.x != 0) return;
  const float log_sum = logf(s.sum), h = log_sum - s.weighted / s.sum;
  lse[row] = s.peak + log_sum;
  logprobs[row] = own - s.peak - log_sum;
  entropy[row] = h < 0 ? 0 : h;  // keeps NaN
  rank[row] = known ? s.above : -1;
}

// In place: each round ends before the next one writes, so a result only overwrites logits that all threads
// have read.
template <int N, typename T>
__global__ void token_logprobs_slope_kernel(float* logits, const int64_t* targets, Map map, const float* lse,
                                            const float* entropy, const float* grad_logprobs,
                                            const float* grad_entropy, int64_t vocab) {
  const int64_t row = blockIdx.x, target = targets[row];
  const float* in = logits + row * vocab;
  T* out = reinterpret_cast<T*>(logits + row * vocab);
  const float log_sum = lse[row], gl = grad_logprobs == nullptr ? 1 : grad_logprobs[row],
              ge = grad_entropy == nullptr ? 0 : grad_entropy[row], h = ge == 0 ? 0 : entropy[row];
  const int64_t rounds = (vocab + kThreads * N - 1) / (kThreads * N);
  for (int64_t r = 0; r < rounds; ++r) {
    const int64_t j = (r * kThreads + threadIdx.x) * N;
    Pack<float, N> d;
    if (j < vocab) d = load<N>(in + j);
    if (sizeof(T) < sizeof(float)) __syncthreads();
    if (j >= vocab) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      // d entropy / dz = -p (log p + entropy), d log p(target) / dz = [target] - p
      const float z = map.of(d.v[i]), log_p = fmaxf(z - log_sum, kLeast);
      const float by_z = (j + i == target ? gl : 0) - expf(log_p) * (gl + ge * (log_p + h));
      d.v[i] = by_z * map.slope(z);
    }
    store(out + j, d);
  }
}

}  // namespace

void token_logprobs(Stream stream, const float* logits, const int64_t* targets, double temperature,
                    double softcap, float* logprobs, float* entropy, int64_t* rank, float* lse, int64_t rows,
                    int64_t vocab) {
  if (rows == 0) return;
  const Map map(temperature, softcap);
  const auto start = vocab % 4 == 0 && aligned(logits) ? token_logprobs_kernel<4> : token_logprobs_kernel<1>;
  start<<<static_cast<unsigned>(rows), kThreads, 0, on(stream)>>>(logits, targets, map, logprobs, entropy,
                                                                  rank, lse, vocab);
  check_launch("token_logprobs");
}

void token_logprobs_slope(Stream stream, float* logits, const int64_t* targets, double temperature,
                          double softcap, const float* lse, const float* entropy, const float* grad_logprobs,
                          const float* grad_entropy, Type type, int64_t rows, int64_t vocab) {
  if (rows == 0) return;
  const Map map(temperature, softcap);
  with_type(type, [&](auto* of_type) {
    using T = std::remove_pointer_t<decltype(of_type)>;
    const auto start = vocab % 4 == 0 && aligned(logits) ? token_logprobs_slope_kernel<4, T>
                                                         : token_logprobs_slope_kernel<1, T>;
    start<<<static_cast<unsigned>(rows), kThreads, 0, on(stream)>>>(logits, targets, map, lse, entropy,
                                                                    grad_logprobs, grad_entropy, vocab);
  });
  check_launch("token_logprobs_slope");
}

}  // namespace rlt::cuda
