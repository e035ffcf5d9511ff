// Vectors of floats and what can be done with them; part of set_impl.h, inside its namespace.

constexpr int kLanes = RLT_LANES;
constexpr int kVectors = kPanel / kLanes;  // of a row of a panel
#define RLT_VECTOR(T) vector_size(kLanes * sizeof(T)), aligned(alignof(T)), may_alias
typedef float V __attribute__((RLT_VECTOR(float)));
typedef int32_t I __attribute__((RLT_VECTOR(int32_t)));
typedef uint32_t U __attribute__((RLT_VECTOR(uint32_t)));
typedef uint16_t H __attribute__((RLT_VECTOR(uint16_t)));
#undef RLT_VECTOR
#define RLT_INLINE static inline __attribute__((always_inline))
#define RLT_UNROLL _Pragma("GCC unroll 16")
// What an asm calls a vector that it reads and writes in a register.
#if defined(__aarch64__)
#define RLT_REGISTER "+w"
#else
#define RLT_REGISTER "+v"
#endif

RLT_INLINE const V& vec(const float* x) { return *reinterpret_cast<const V*>(x); }
RLT_INLINE V& vec(float* x) { return *reinterpret_cast<V*>(x); }
// x - 0 is x, which compilers know; x + 0 is not where x is -0.
RLT_INLINE V splat(float x) { return x - V{}; }
// NaN if either is.
RLT_INLINE V larger(V a, V b) { return (a > b) | (a != a) ? a : b; }
RLT_INLINE float larger(float a, float b) { return a > b || a != a ? a : b; }
RLT_INLINE V clamp(V x, float low, float high) { return x < low ? splat(low) : (x > high ? splat(high) : x); }

// The bits of x, whose upper half is x as bfloat16, rounded to the nearest, ties to even; x is finite and not
// subnormal.
RLT_INLINE U round_high(V x) {
  const U bits = (U)x;
  return bits + 0x7fff + (bits >> 16 & 1);
}

// The next vector of a row that has n elements left; those that it lacks are `rest`.
RLT_INLINE V load(const float* x, int64_t n, float rest = 0) {
  if (n >= kLanes) return vec(x);
  float part[kLanes];
  for (int j = 0; j < kLanes; ++j) part[j] = rest;
  for (int64_t j = 0; j < n; ++j) part[j] = x[j];
  return vec(part);
}

// Writes the first n elements of v.
RLT_INLINE void store(float* x, int64_t n, V v) {
  if (n >= kLanes) {
    vec(x) = v;
    return;
  }
  float part[kLanes];
  vec(part) = v;
  for (int64_t j = 0; j < n; ++j) x[j] = part[j];
}

RLT_INLINE float fold_sum(V x) {
  float sum[kLanes];
  vec(sum) = x;
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
  }
  return sum[0];
}

RLT_INLINE float fold_peak(V x) {
  alignas(64) static constexpr int32_t kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const I lane = *reinterpret_cast<const I*>(kLane);
  RLT_UNROLL for (int width = kLanes / 2; width > 0; width /= 2) {
    x = larger(x, __builtin_shuffle(x, lane ^ width));
  }
  return x[0];
}

// exp(x) to 2.8 ulp, or 3.1 without fused multiply-adds, for x in [-87, 88]; below it is 0. Cody-Waite
// reduction to |r| ≤ ½ ln 2, then the Taylor polynomial of degree 6 by Horner's rule.
RLT_INLINE V exp_of(V x) {
  const V clipped = clamp(x, -87.0f, 88.0f);
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

// tanh to 4 ulp: an odd polynomial of degree 13 over an even one of degree 6, minimax on [-7.9, 7.9], where
// float tanh reaches ±1 (the coefficients are those of Eigen).
RLT_INLINE V tanh_of(V x) {
  x = clamp(x, -7.90531110763549805f, 7.90531110763549805f);
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

// An activation's value and slope. A caller that has no use for the slope pays nothing for it.
struct Silu {
  RLT_INLINE V at(V x, V* slope) {
    const V sigmoid = 1.0f / (1.0f + exp_of(-x));
    *slope = sigmoid * (1.0f + x * (1.0f - sigmoid));
    return x * sigmoid;
  }
};
struct Gelu {
  RLT_INLINE V at(V x, V* slope) {
    const V tail = 0.5f * erfc_of((x < 0.0f ? -x : x) * 0.70710678f);
    const V below = x < 0.0f ? tail : 1.0f - tail;  // Φ(x)
    *slope = below + x * 0.39894228f * exp_of(-0.5f * x * x);
    return x * below;
  }
};
// ½(1 + tanh u) is the logistic function of 2u.
struct GeluTanh {
  RLT_INLINE V at(V x, V* slope) {
    const V square = x * x;
    const V sigmoid = 1.0f / (1.0f + exp_of(-1.5957691216f * x * (1.0f + 0.044715f * square)));
    *slope = sigmoid * (1.0f + x * (1.0f - sigmoid) * 1.5957691216f * (1.0f + 0.134145f * square));
    return x * sigmoid;
  }
};
struct Relu {
  RLT_INLINE V at(V x, V* slope) {
    *slope = x > 0.0f ? splat(1) : V{};
    return x > 0.0f ? x : V{};
  }
};

// The element types of panels: Step rows of k are read at a time, and row<S> is the S-th of them. An element
// of a tile's rows is spread over a vector, whose product with a row is added to the sums.
struct Floats {
  RLT_INLINE V spread(const float* a) { return splat(*a); }
  RLT_INLINE void add_product(V& sum, V x, V w) { sum += x * w; }
};

struct F32 : Floats {
  using Element = float;
  static constexpr int kStep = 1;
  template <int S>
  RLT_INLINE V row(const float* b, int v) {
    return vec(b + v * kLanes);
  }
};

#if defined(__AVX512BF16__)
// Words of two bfloat16 on both sides.
struct Pairs : F32 {
  RLT_INLINE V spread(const float* a) {
    int word;
    __builtin_memcpy(&word, a, sizeof word);
    return (V)_mm512_set1_epi32(word);
  }
  RLT_INLINE void add_product(V& sum, V x, V w) {
    sum = (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
  }
};
#endif

struct BF16 : Floats {
  using Element = uint16_t;
  static constexpr int kStep = 2;
  template <int S>
  RLT_INLINE V row(const uint16_t* b, int v) {
    const U words = *reinterpret_cast<const U*>(b + v * kLanes * 2);
    return S == 0 ? (V)(words << 16) : (V)(words & 0xffff0000U);
  }
};

struct F16 : Floats {
  using Element = uint16_t;
  static constexpr int kStep = 1;
  template <int S>
  RLT_INLINE V row(const uint16_t* b, int v) {
#if defined(__AVX512F__)
    // The form with a mask: GCC 12 warns about its own header in the other one.
    return (V)_mm512_maskz_cvtph_ps(0xffff,
                                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + v * kLanes)));
#elif defined(__F16C__)
    return (V)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + v * kLanes)));
#elif defined(RLT_NEON)
    return (V)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(b + v * kLanes)));
#else
    // Exponent and mantissa move to their places in a float and the bias changes by a product, which also
    // normalises subnormal values; the exponent of infinity and NaN is set outright.
    const U half = __builtin_convertvector(*reinterpret_cast<const H*>(b + v * kLanes), U);
    const U magnitude = (half & 0x7fffU) << 13, sign = (half & 0x8000U) << 16;
    const U finite = (U)((V)magnitude * 0x1p112f);
    return (V)((magnitude >= 0x0f800000U ? (magnitude | 0x7f800000U) : finite) | sign);
#endif
  }
};
