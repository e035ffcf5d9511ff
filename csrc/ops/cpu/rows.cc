#include "ops/cpu/rows.h"

#include <cmath>

#include "ops/cpu/lanes.h"

namespace rlt {
namespace {

// The finaliser of MurmurHash3, 32 bits.
RLT_INLINE uint32_t mix(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bU;
  h ^= h >> 13;
  h *= 0xc2b2ae35U;
  return h ^ (h >> 16);
}

}  // namespace

RLT_CLONES void dropout_row(const float* x, float* y, int64_t n, int64_t key, int64_t layer, double p) {
  const auto threshold = static_cast<uint32_t>(p * 4294967296.0);
  const auto keep = static_cast<float>(1.0 / (1.0 - p));
  const auto k = static_cast<uint64_t>(key);
  const uint32_t row = mix(mix(static_cast<uint32_t>(k) ^ 0x9e3779b9U) + static_cast<uint32_t>(k >> 32)) +
                       mix(static_cast<uint32_t>(layer) + 0x7f4a7c15U);
  for (int64_t j = 0; j < n; ++j) {
    const uint32_t h = mix(row + static_cast<uint32_t>(j) * 0x9e3779b9U);
    y[j] = h < threshold ? 0.0f : x[j] * keep;
  }
}

RLT_CLONES float softmax_row(float* x, int64_t n, float scale) {
  float peak = x[0];
  int64_t i = 0;
  if (n >= kLanes) {
    Lanes peaks = lanes(x);
    for (i = kLanes; i + kLanes <= n; i += kLanes) peaks = lanes(x + i) > peaks ? lanes(x + i) : peaks;
    for (int j = 0; j < kLanes; ++j) peak = peaks[j] > peak ? peaks[j] : peak;
  }
  for (; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
  for (i = 0; i < n; ++i) x[i] = fast_exp(scale * (x[i] - peak));
  Lanes sums = {};
  for (i = 0; i + kLanes <= n; i += kLanes) sums += lanes(x + i);
  for (; i < n; ++i) sums[0] += x[i];
  const float sum = fold_sum(sums), inverse = 1.0f / sum;
  for (i = 0; i < n; ++i) x[i] *= inverse;
  return scale * peak + std::log(sum);
}

RLT_CLONES void exp_row(float* x, int64_t n, float scale, float lse) {
  for (int64_t i = 0; i < n; ++i) x[i] = fast_exp(scale * x[i] - lse);
}

RLT_CLONES void softmax_backward_row(float* dp, const float* p, int64_t n, float delta, float scale) {
  for (int64_t i = 0; i < n; ++i) dp[i] = scale * p[i] * (dp[i] - delta);
}

RLT_CLONES float dot_row(const float* x, const float* y, int64_t n) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums += lanes(x + i) * lanes(y + i);
  for (; i < n; ++i) sums[0] += x[i] * y[i];
  return fold_sum(sums);
}

RLT_CLONES void add_layer_norm_row(const float* x, const float* residual, const float* weight,
                                   const float* bias, float* sum, float* y, int64_t n, float eps, float* mean,
                                   float* rstd) {
  Lanes sums = {}, squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes s = lanes(x + i) + lanes(residual + i);
    lanes(sum + i) = s;
    sums += s;
  }
  for (; i < n; ++i) {
    sum[i] = x[i] + residual[i];
    sums[0] += sum[i];
  }
  const float m = fold_sum(sums) / static_cast<float>(n);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const Lanes d = lanes(sum + i) - m;
    squares += d * d;
  }
  for (; i < n; ++i) squares[0] += (sum[i] - m) * (sum[i] - m);
  const float r = 1.0f / std::sqrt(fold_sum(squares) / static_cast<float>(n) + eps);
  for (i = 0; i < n; ++i) y[i] = (sum[i] - m) * r * weight[i] + bias[i];
  *mean = m;
  *rstd = r;
}

// With z = (sum - mean) · rstd and g = grad · weight: rstd · (g - mean(g) - z · mean(g · z)).
RLT_CLONES void add_layer_norm_backward_row(const float* grad, const float* sum, const float* weight,
                                            float mean, float rstd, float* out, int64_t n) {
  Lanes gs = {}, gzs = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes g = lanes(grad + i) * lanes(weight + i);
    gs += g;
    gzs += g * ((lanes(sum + i) - mean) * rstd);
  }
  for (; i < n; ++i) {
    const float g = grad[i] * weight[i];
    gs[0] += g;
    gzs[0] += g * ((sum[i] - mean) * rstd);
  }
  const float mg = fold_sum(gs) / static_cast<float>(n), mgz = fold_sum(gzs) / static_cast<float>(n);
  for (i = 0; i < n; ++i) {
    out[i] = rstd * (grad[i] * weight[i] - mg - (sum[i] - mean) * rstd * mgz);
  }
}

RLT_CLONES void add_row(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

RLT_CLONES void scale_row(const float* x, float* y, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) y[i] = scale * x[i];
}

}  // namespace rlt
