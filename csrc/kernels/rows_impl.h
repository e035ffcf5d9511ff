// Rows of floats: sums, norms, positions, gates; part of set_impl.h, inside its namespace.

void widen_bf16(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    __builtin_memcpy(y + i, &bits, sizeof bits);
  }
}

void round_bf16(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding could carry a NaN over into infinity.
    y[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : nearest);
  }
}

void widen_f16(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) vec(y + i) = F16::row<0>(x + i, 0);
  if (i == n) return;
  uint16_t rest[kLanes] = {};
  for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
  store(y + i, n - i, F16::row<0>(rest, 0));
}

void scale(const float* x, float f, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = f * x[i];
}

void add_scaled(float f, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += f * x[i];
}

float dot(const float* x, const float* y, int64_t n) {
  V sums = {};
  for (int64_t i = 0; i < n; i += kLanes) sums += load(x + i, n - i) * load(y + i, n - i);
  return fold_sum(sums);
}

float peak(const float* x, int64_t n) {
  if (n < kLanes) return fold_peak(load(x, n, x[0]));
  V tops[4];
  RLT_UNROLL for (int j = 0; j < 4; ++j) tops[j] = vec(x);
  int64_t i = kLanes;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    RLT_UNROLL for (int j = 0; j < 4; ++j) tops[j] = larger(vec(x + i + j * kLanes), tops[j]);
  }
  for (; i + kLanes <= n; i += kLanes) tops[0] = larger(vec(x + i), tops[0]);
  tops[1] = larger(vec(x + n - kLanes), tops[1]);  // some of them again
  return fold_peak(larger(larger(tops[0], tops[1]), larger(tops[2], tops[3])));
}

int64_t at_least(const float* x, int64_t n, float bound, int32_t* ids) {
  constexpr int64_t kSkip = 64;
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kSkip) {
    const int64_t end = n - i < kSkip ? n : i + kSkip;
    if (!(peak(x + i, end - i) >= bound)) continue;
    for (int64_t j = i; j < end; ++j) {
      ids[count] = static_cast<int32_t>(j);
      count += x[j] >= bound;
    }
  }
  return count;
}

// ---- norms ----

float rms_norm(const float* x, const float* weight, float shift, float* y, int64_t n, float eps) {
  const float rstd = 1.0f / __builtin_sqrtf(dot(x, x, n) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * rstd * (shift + weight[i]);
  return rstd;
}

// With g = grad · (shift + weight): rstd · (g - x · rstd² · mean(g · x)).
void rms_norm_backward(const float* grad, const float* x, const float* weight, float shift, float rstd,
                       float* out, int64_t n) {
  V products = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    products += load(grad + i, n - i) * (load(weight + i, n - i) + shift) * load(x + i, n - i);
  }
  const float pull = fold_sum(products) / static_cast<float>(n) * rstd * rstd;
  for (int64_t i = 0; i < n; ++i) out[i] = rstd * (grad[i] * (weight[i] + shift) - x[i] * pull);
}

float layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t n, float eps,
                 float* mean) {
  V sums = {}, squares = {};
  for (int64_t i = 0; i < n; i += kLanes) sums += load(x + i, n - i);
  const float m = fold_sum(sums) / static_cast<float>(n);
  for (int64_t i = 0; i < n; i += kLanes) {
    const V d = load(x + i, n - i, m) - m;
    squares += d * d;
  }
  const float rstd = 1.0f / __builtin_sqrtf(fold_sum(squares) / static_cast<float>(n) + eps);
  if (bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - m) * rstd * weight[i] + bias[i];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - m) * rstd * weight[i];
  }
  *mean = m;
  return rstd;
}

// With z = (x - mean) · rstd and g = grad · weight: rstd · (g - mean(g) - z · mean(g · z)).
void layer_norm_backward(const float* grad, const float* x, const float* weight, float mean, float rstd,
                         float* out, int64_t n) {
  V gs = {}, gzs = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = load(grad + i, n - i) * load(weight + i, n - i);
    gs += g;
    gzs += g * ((load(x + i, n - i) - mean) * rstd);
  }
  const float mg = fold_sum(gs) / static_cast<float>(n), mgz = fold_sum(gzs) / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = rstd * (grad[i] * weight[i] - mg - (x[i] - mean) * rstd * mgz);
  }
}

// ---- positions, gates ----

void rotate(const float* x, const float* cos, const float* sin, float sign, float* y, int64_t half,
            int64_t n) {
  for (int64_t j = 0; j < half; j += kLanes) {
    const int64_t left = half - j;
    const V a = load(x + j, left), b = load(x + half + j, left), c = load(cos + j, left),
            s = sign * load(sin + j, left);
    store(y + j, left, a * c - b * s);
    store(y + half + j, left, b * c + a * s);
  }
  if (y == x) return;
  for (int64_t j = 2 * half; j < n; ++j) y[j] = x[j];
}

template <class A>
void activate_with(float* x, int64_t n) {
  V slope;
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, n - i, A::at(load(x + i, n - i), &slope));
}

template <class A>
void gate_with(const float* gate, const float* up, float* y, int64_t n) {
  V slope;
  for (int64_t i = 0; i < n; i += kLanes) {
    store(y + i, n - i, A::at(load(gate + i, n - i), &slope) * load(up + i, n - i));
  }
}

template <class A>
void gate_backward_with(const float* grad, const float* gate, const float* up, float* grad_gate,
                        float* grad_up, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    V slope;
    const V value = A::at(load(gate + i, n - i), &slope), g = load(grad + i, n - i);
    store(grad_gate + i, n - i, g * load(up + i, n - i) * slope);
    store(grad_up + i, n - i, g * value);
  }
}

template <class A>
void gate_panels_with(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                      int64_t pairs) {
  for (int64_t i = 0; i < rows; ++i, x += x_stride, y += y_stride) {
    for (int64_t p = 0; p < pairs; ++p) {
      const float* both = x + 2 * p * kPanel;
      V slope;
      RLT_UNROLL for (int64_t j = 0; j < kPanel; j += kLanes) {
        vec(y + p * kPanel + j) = A::at(vec(both + j), &slope) * vec(both + kPanel + j);
      }
    }
  }
}

// The activations' numbers are those of rltrain.h, whose order they follow.
void activate(float* x, int64_t n, int32_t activation) {
  static constexpr decltype(&activate_with<Silu>) kAll[] = {activate_with<Silu>, activate_with<Gelu>,
                                                            activate_with<GeluTanh>, activate_with<Relu>};
  kAll[activation](x, n);
}

void gate(const float* gate, const float* up, float* y, int64_t n, int32_t activation) {
  static constexpr decltype(&gate_with<Silu>) kAll[] = {gate_with<Silu>, gate_with<Gelu>, gate_with<GeluTanh>,
                                                        gate_with<Relu>};
  kAll[activation](gate, up, y, n);
}

void gate_backward(const float* grad, const float* gate, const float* up, float* grad_gate, float* grad_up,
                   int64_t n, int32_t activation) {
  static constexpr decltype(&gate_backward_with<Silu>) kAll[] = {
      gate_backward_with<Silu>, gate_backward_with<Gelu>, gate_backward_with<GeluTanh>,
      gate_backward_with<Relu>};
  kAll[activation](grad, gate, up, grad_gate, grad_up, n);
}

void gate_panels(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows, int64_t pairs,
                 int32_t activation) {
  static constexpr decltype(&gate_panels_with<Silu>) kAll[] = {
      gate_panels_with<Silu>, gate_panels_with<Gelu>, gate_panels_with<GeluTanh>, gate_panels_with<Relu>};
  kAll[activation](x, x_stride, y, y_stride, rows, pairs);
}

// The finaliser of MurmurHash3, 32 bits.
RLT_INLINE uint32_t mix(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bU;
  h ^= h >> 13;
  h *= 0xc2b2ae35U;
  return h ^ (h >> 16);
}

void dropout(const float* x, float* y, int64_t n, int64_t key, int64_t layer, double p) {
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
