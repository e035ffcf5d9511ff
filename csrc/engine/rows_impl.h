// The kernels over one row of floats; part of kernels_impl.h, inside its namespace.

// exp(x) to 2.8 ulp for x in [-87, 88]; below it is 0. Cody-Waite reduction to |r| ≤ ½ ln 2, then the
// Taylor polynomial of degree 6 by Horner's rule.
RLT_INLINE V exp_of(V x) {
  const V clipped = x < -87.0f ? splat(-87.0f) : (x > 88.0f ? splat(88.0f) : x);
  const V n = (clipped * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to an integer
  const V r = (clipped - n * 0.693359375f) + n * 2.12194440e-4f;
  V q = splat(1.3888889e-3f);
  q = q * r + 8.3333333e-3f;
  q = q * r + 4.1666668e-2f;
  q = q * r + 0.16666667f;
  q = q * r + 0.5f;
  q = q * r + 1.0f;
  q = q * r + 1.0f;
  const V power = (V)((__builtin_convertvector(n, I) + 127) << 23);
  return x < -87.0f ? V{} : q * power;
}

// tanh as the ratio of two polynomials that Eigen uses, a few ulp everywhere.
RLT_INLINE V tanh_of(V x) {
  x = x < -7.90531110763549805f ? splat(-7.90531110763549805f) : x;
  x = x > 7.90531110763549805f ? splat(7.90531110763549805f) : x;
  const V s = x * x;
  V p = splat(-2.76076847742355e-16f);
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  V q = splat(1.19825839466702e-06f);
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return x * p / q;
}

// erfc for z ≥ 0 to a relative 1.2e-7: the Chebyshev fit of Numerical Recipes, section 6.2.
RLT_INLINE V erfc_of(V z) {
  const V t = 1.0f / (1.0f + 0.5f * z);
  V q = splat(0.17087277f);
  q = q * t - 0.82215223f;
  q = q * t + 1.48851587f;
  q = q * t - 1.13520398f;
  q = q * t + 0.27886807f;
  q = q * t - 0.18628806f;
  q = q * t + 0.09678418f;
  q = q * t + 0.37409196f;
  q = q * t + 1.00002368f;
  q = q * t - 1.26551223f;
  return t * exp_of(q - z * z);
}

struct Silu {
  RLT_INLINE V of(V x) { return x / (1.0f + exp_of(-x)); }
};
struct Gelu {
  RLT_INLINE V of(V x) {
    const V tail = 0.5f * erfc_of((x < 0.0f ? -x : x) * 0.70710678f);
    return x * (x < 0.0f ? tail : 1.0f - tail);
  }
};
// ½(1 + tanh u) is the logistic function of 2u.
struct GeluTanh {
  RLT_INLINE V of(V x) { return x / (1.0f + exp_of(-1.5957691216f * (x + 0.044715f * x * x * x))); }
};
struct Relu {
  RLT_INLINE V of(V x) { return x > 0.0f ? x : V{}; }
};

// Runs body on whole vectors of a row, and on the rest of it copied into one that is filled up with zeros.
template <class F>
RLT_INLINE void map(const float* x, float* y, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) vec(y + i) = f(vec(x + i));
  if (i == n) return;
  float rest[kLanes] = {};
  for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
  vec(rest) = f(vec(rest));
  for (int64_t j = i; j < n; ++j) y[j] = rest[j - i];
}

template <class A>
void gate_with(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows, int64_t pairs) {
  for (int64_t i = 0; i < rows; ++i, x += x_stride, y += y_stride) {
    for (int64_t p = 0; p < pairs; ++p) {
      const float* both = x + 2 * p * kPanel;
      RLT_UNROLL for (int64_t j = 0; j < kPanel; j += kLanes) {
        vec(y + p * kPanel + j) = A::of(vec(both + j)) * vec(both + kPanel + j);
      }
    }
  }
}

// The activations' numbers are those of rltrain.h, whose order they follow.
void gate(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows, int64_t pairs,
          int32_t activation) {
  static constexpr void (*kGates[])(const float*, int64_t, float*, int64_t, int64_t, int64_t) = {
      gate_with<Silu>, gate_with<Gelu>, gate_with<GeluTanh>, gate_with<Relu>};
  kGates[activation](x, x_stride, y, y_stride, rows, pairs);
}

template <class A>
void activate_with(float* x, int64_t n) {
  map(
      x, x, n, [](V v) __attribute__((always_inline)) { return A::of(v); });
}

void activate(float* x, int64_t n, int32_t activation) {
  static constexpr void (*kActivations[])(float*, int64_t) = {activate_with<Silu>, activate_with<Gelu>,
                                                              activate_with<GeluTanh>, activate_with<Relu>};
  kActivations[activation](x, n);
}

void softcap(float* x, int64_t n, float cap) {
  const float inverse = 1.0f / cap;
  map(
      x, x, n, [=](V v) __attribute__((always_inline)) { return cap * tanh_of(v * inverse); });
}

void scale(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void add(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void rotate(float* x, const float* cos, const float* sin, int64_t n) {
  float* z = x + n;
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const V a = vec(x + j), b = vec(z + j), c = vec(cos + j), s = vec(sin + j);
    vec(x + j) = a * c - b * s;
    vec(z + j) = b * c + a * s;
  }
  for (; j < n; ++j) {
    const float a = x[j], b = z[j];
    x[j] = a * cos[j] - b * sin[j];
    z[j] = b * cos[j] + a * sin[j];
  }
}

RLT_INLINE float sum_of_squares(const float* x, int64_t n, float centre) {
  V sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums += (vec(x + i) - centre) * (vec(x + i) - centre);
  for (; i < n; ++i) sums[0] += (x[i] - centre) * (x[i] - centre);
  return fold_sum(sums);
}

void rms_norm(const float* x, const float* weight, float* y, int64_t n, float eps) {
  const float r = 1.0f / __builtin_sqrtf(sum_of_squares(x, n, 0) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * r * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t n, float eps) {
  V sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums += vec(x + i);
  for (; i < n; ++i) sums[0] += x[i];
  const float mean = fold_sum(sums) / static_cast<float>(n);
  const float r = 1.0f / __builtin_sqrtf(sum_of_squares(x, n, mean) / static_cast<float>(n) + eps);
  for (i = 0; i < n; ++i) y[i] = (x[i] - mean) * r * weight[i] + bias[i];
}

float peak(const float* x, int64_t n) {
  float top = x[0];
  int64_t i = 0;
  if (n >= 4 * kLanes) {
    V tops[4] = {vec(x), vec(x + kLanes), vec(x + 2 * kLanes), vec(x + 3 * kLanes)};
    for (i = 4 * kLanes; i + 4 * kLanes <= n; i += 4 * kLanes) {
      RLT_UNROLL for (int j = 0; j < 4; ++j) tops[j] = larger(tops[j], vec(x + i + j * kLanes));
    }
    top = fold_peak(larger(larger(tops[0], tops[1]), larger(tops[2], tops[3])));
  }
  for (; i < n; ++i) top = larger(top, x[i]);
  return top;
}

// y = exp((x - peak) · factor) and its sum; with kKeep false y is left alone.
template <bool kKeep>
RLT_INLINE float exp_row(const float* x, int64_t n, float top, float factor, float* y) {
  V sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V e = exp_of((vec(x + i) - top) * factor);
    if (kKeep) vec(y + i) = e;
    sums += e;
  }
  for (; i < n; ++i) {
    const float e = exp_of(splat((x[i] - top) * factor))[0];
    if (kKeep) y[i] = e;
    sums[0] += e;
  }
  return fold_sum(sums);
}

float softmax(float* x, int64_t n) { return exp_row<true>(x, n, peak(x, n), 1, x); }

double sum_exp(const float* x, int64_t n, float top) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    sum += exp_row<false>(x + i, n - i < kSumBlock ? n - i : kSumBlock, top, 1, nullptr);
  }
  return sum;
}

double exp_blocks(const float* x, int64_t n, float top, float factor, float* y, double* sums) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const double block = exp_row<true>(x + i, n - i < kSumBlock ? n - i : kSumBlock, top, factor, y + i);
    sums[i / kSumBlock] = block;
    sum += block;
  }
  return sum;
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
