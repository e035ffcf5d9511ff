// What the row kernels are made of. Only for their sources: everything here is inlined into functions that
// are compiled for several instruction sets.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Reductions keep 8 partial sums in a fixed order, so that vectors may be used without allowing the compiler
// to reorder arithmetic elsewhere. They are written as vectors: the compiler's own choice of loop to
// vectorise was four times slower.
#define RLT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define RLT_INLINE static inline __attribute__((always_inline))

namespace rlt {

constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(alignof(float)), may_alias));

RLT_INLINE const Lanes& lanes(const float* x) { return *reinterpret_cast<const Lanes*>(x); }
RLT_INLINE Lanes& lanes(float* x) { return *reinterpret_cast<Lanes*>(x); }

RLT_INLINE float fold_sum(const Lanes& x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// exp(x) to 2.8 ulp for x in [-87, 88]; below it is 0. Cody-Waite reduction to |r| ≤ ½ ln 2, then the
// Taylor polynomial of degree 6 by Horner's rule.
RLT_INLINE float fast_exp(float x) {
  const float clipped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float shifted = clipped * 1.44269504f + 12582912.0f;  // rounds to an integer in the low bits
  const float n = shifted - 12582912.0f;
  const float r = (clipped - n * 0.693359375f) + n * 2.12194440e-4f;
  float q = 1.3888889e-3f;
  q = q * r + 8.3333333e-3f;
  q = q * r + 4.1666668e-2f;
  q = q * r + 0.16666667f;
  q = q * r + 0.5f;
  q = q * r + 1.0f;
  q = q * r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -87.0f ? 0.0f : q * power;
}

}  // namespace rlt
