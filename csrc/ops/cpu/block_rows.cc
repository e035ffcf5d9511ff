#include "ops/cpu/block_rows.h"

#include "ops/cpu/lanes.h"
#include "rltrain.h"

namespace rlt {
namespace {

// To 4e-7 of its value: by its series near 0, where 1 - 2/(exp(2x) + 1) would lose digits.
RLT_INLINE float fast_tanh(float x) {
  const float square = x * x;
  const float near =
      x * (1.0f + square * (-0.33333333f +
                            square * (0.13333333f + square * (-0.053968254f + square * 0.021869488f))));
  const float far = 1.0f - 2.0f / (fast_exp(2.0f * x) + 1.0f);
  return square < 0.0625f ? near : far;
}

// An activation's value and slope.
struct Silu {
  RLT_INLINE void at(float x, float* value, float* slope) {
    const float sigmoid = 1.0f / (1.0f + fast_exp(-x));
    *value = x * sigmoid;
    *slope = sigmoid * (1.0f + x * (1.0f - sigmoid));
  }
};

struct Gelu {
  RLT_INLINE void at(float x, float* value, float* slope) {
    const float below = 0.5f * (1.0f + std::erf(x * 0.70710678f));  // Φ(x)
    *value = x * below;
    *slope = below + x * 0.39894228f * fast_exp(-0.5f * x * x);
  }
};

struct GeluTanh {
  RLT_INLINE void at(float x, float* value, float* slope) {
    const float square = x * x;
    const float t = fast_tanh(0.79788456f * x * (1.0f + 0.044715f * square));
    *value = 0.5f * x * (1.0f + t);
    *slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * square);
  }
};

struct Relu {
  RLT_INLINE void at(float x, float* value, float* slope) {
    *value = x > 0 ? x : 0.0f;
    *slope = x > 0 ? 1.0f : 0.0f;
  }
};

template <typename Act>
RLT_INLINE void forward_row(const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float value, slope;
    Act::at(gate[i], &value, &slope);
    y[i] = value * up[i];
  }
}

template <typename Act>
RLT_INLINE void backward_row(const float* grad, const float* gate, const float* up, float* grad_gate,
                             float* grad_up, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float value, slope;
    Act::at(gate[i], &value, &slope);
    grad_gate[i] = grad[i] * up[i] * slope;
    grad_up[i] = grad[i] * value;
  }
}

}  // namespace

RLT_CLONES float rms_norm_row(const float* x, const float* weight, float shift, float* y, int64_t n,
                              float eps) {
  Lanes squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) squares += lanes(x + i) * lanes(x + i);
  for (; i < n; ++i) squares[0] += x[i] * x[i];
  const float rstd = 1.0f / std::sqrt(fold_sum(squares) / static_cast<float>(n) + eps);
  for (i = 0; i < n; ++i) y[i] = x[i] * rstd * (shift + weight[i]);
  return rstd;
}

// With g = grad · (shift + weight): rstd · (g - x · rstd² · mean(g · x)).
RLT_CLONES void rms_norm_backward_row(const float* grad, const float* x, const float* weight, float shift,
                                      float rstd, float* out, int64_t n) {
  Lanes products = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    products += lanes(grad + i) * (lanes(weight + i) + shift) * lanes(x + i);
  }
  for (; i < n; ++i) products[0] += grad[i] * (weight[i] + shift) * x[i];
  const float pull = fold_sum(products) / static_cast<float>(n) * rstd * rstd;
  for (i = 0; i < n; ++i) out[i] = rstd * (grad[i] * (weight[i] + shift) - x[i] * pull);
}

RLT_CLONES void rope_row(const float* x, const float* c, const float* s, float sign, float* y, int64_t half,
                         int64_t n) {
  for (int64_t j = 0; j < half; ++j) {
    const float sine = sign * s[j], low = x[j], high = x[j + half];
    y[j] = low * c[j] - high * sine;
    y[j + half] = high * c[j] + low * sine;
  }
  for (int64_t j = 2 * half; j < n; ++j) y[j] = x[j];
}

RLT_CLONES void gated_act_row(const float* gate, const float* up, float* y, int64_t n, int64_t activation) {
  switch (activation) {
    case RLT_ACT_SILU:
      return forward_row<Silu>(gate, up, y, n);
    case RLT_ACT_GELU:
      return forward_row<Gelu>(gate, up, y, n);
    case RLT_ACT_GELU_TANH:
      return forward_row<GeluTanh>(gate, up, y, n);
    default:
      return forward_row<Relu>(gate, up, y, n);
  }
}

RLT_CLONES void gated_act_backward_row(const float* grad, const float* gate, const float* up,
                                       float* grad_gate, float* grad_up, int64_t n, int64_t activation) {
  switch (activation) {
    case RLT_ACT_SILU:
      return backward_row<Silu>(grad, gate, up, grad_gate, grad_up, n);
    case RLT_ACT_GELU:
      return backward_row<Gelu>(grad, gate, up, grad_gate, grad_up, n);
    case RLT_ACT_GELU_TANH:
      return backward_row<GeluTanh>(grad, gate, up, grad_gate, grad_up, n);
    default:
      return backward_row<Relu>(grad, gate, up, grad_gate, grad_up, n);
  }
}

RLT_CLONES void softcap_row(float* x, int64_t n, float scale, float cap) {
  const float inner = scale / cap;
  for (int64_t i = 0; i < n; ++i) x[i] = cap * fast_tanh(inner * x[i]);
}

RLT_CLONES void softcap_backward_row(float* d, const float* capped, int64_t n, float cap) {
  const float inverse = 1.0f / cap;
  for (int64_t i = 0; i < n; ++i) {
    const float t = capped[i] * inverse;
    d[i] *= 1.0f - t * t;
  }
}

}  // namespace rlt
