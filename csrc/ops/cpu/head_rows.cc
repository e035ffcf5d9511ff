#include "ops/cpu/head_rows.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/lanes.h"

namespace rlt {
namespace {

// Elements that stay in registers and the first cache between a step's loops.
constexpr int64_t kStrip = 64;

// tanh to 4 ulp: an odd polynomial of degree 13 over an even one of degree 6, minimax on [-7.9, 7.9], where
// float tanh reaches ±1.
RLT_INLINE float fast_tanh(float x) {
  const float c = x < -7.90531110763549805f ? -7.90531110763549805f
                                            : (x > 7.90531110763549805f ? 7.90531110763549805f : x);
  const float s = c * c;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return c * p / q;
}

// The largest of n ≥ 1 values.
RLT_INLINE float row_peak(const float* x, int64_t n) {
  float peak = x[0];
  int64_t i = 0;
  if (n >= kLanes) {
    Lanes peaks = lanes(x);
    for (i = kLanes; i + kLanes <= n; i += kLanes) peaks = lanes(x + i) > peaks ? lanes(x + i) : peaks;
    for (int j = 0; j < kLanes; ++j) peak = peaks[j] > peak ? peaks[j] : peak;
  }
  for (; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
  return peak;
}

// Keeps p · log p at 0 where p is: fast_exp is 0 below.
RLT_INLINE float clip_log(float x) { return x < -88.0f ? -88.0f : x; }

}  // namespace

RLT_CLONES void logits_row(float* x, const float* bias, int64_t n, const LogitMap& map) {
  const float inverse = 1.0f / map.temperature;
  if (bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) x[i] += bias[i];
  }
  if (map.softcap > 0) {
    const float inner = 1.0f / map.softcap, outer = map.softcap * inverse;
    for (int64_t i = 0; i < n; ++i) x[i] = outer * fast_tanh(inner * x[i]);
  } else if (inverse != 1) {
    for (int64_t i = 0; i < n; ++i) x[i] *= inverse;
  }
}

double OnlineSoftmax::shrink(float to) {
  const double fall = static_cast<double>(peak) - to, factor = std::exp(fall);
  weighted = factor > 0 ? factor * (weighted + sum * fall) : 0;
  sum *= factor;
  peak = to;
  return factor;
}

RLT_CLONES float online_softmax_row(float* z, int64_t n, float threshold, const LogitMap& map,
                                    OnlineSoftmax& s) {
  const float top = row_peak(z, n);
  const auto shrink = static_cast<float>(top > s.peak ? s.shrink(top) : 1);
  const float peak = s.peak, curvature = map.curvature();
  Lanes sums = {}, weighted = {};
  int32_t above = 0;
  for (int64_t begin = 0; begin < n; begin += kStrip) {
    const int64_t size = std::min(kStrip, n - begin);
    float* strip = z + begin;
    float fall[kStrip], e[kStrip];
    for (int64_t i = 0; i < size; ++i) {
      fall[i] = clip_log(strip[i] - peak);
      e[i] = fast_exp(fall[i]);
    }
    for (int64_t i = 0; i < size; ++i) above += strip[i] > threshold;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      sums += lanes(e + i);
      weighted += lanes(e + i) * lanes(fall + i);
    }
    for (; i < size; ++i) {
      sums[0] += e[i];
      weighted[0] += e[i] * fall[i];
    }
    if (map.softcap > 0) {
      for (i = 0; i < size; ++i) strip[i] = e[i] * (1 - curvature * strip[i] * strip[i]);
    } else {
      for (i = 0; i < size; ++i) strip[i] = e[i];
    }
  }
  s.sum += fold_sum(sums);
  s.weighted += fold_sum(weighted);
  s.above += above;
  return shrink;
}

RLT_CLONES void logits_backward_row(float* z, int64_t n, float lse, float entropy, float grad_logprob,
                                    float grad_entropy, const LogitMap& map) {
  const float inverse = 1.0f / map.temperature, curvature = map.curvature();
  for (int64_t begin = 0; begin < n; begin += kStrip) {
    const int64_t size = std::min(kStrip, n - begin);
    float* strip = z + begin;
    float slope[kStrip];
    for (int64_t i = 0; i < size; ++i) slope[i] = inverse;
    if (map.softcap > 0) {
      for (int64_t i = 0; i < size; ++i) slope[i] = inverse * (1 - curvature * strip[i] * strip[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
      const float log_p = clip_log(strip[i] - lse);
      strip[i] = -fast_exp(log_p) * (grad_logprob + grad_entropy * (log_p + entropy)) * slope[i];
    }
  }
}

RLT_CLONES void add_scaled_row(float f, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += f * x[i];
}

}  // namespace rlt
