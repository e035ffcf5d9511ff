// The bodies of kernels.h. Each kernels_<instruction set>.cc defines RLT_LANES, the floats of its vectors,
// and includes this file. Everything here is local to that file, and no other header may be used that
// defines inline functions: the linker keeps one copy of those, perhaps with instructions that the
// processor at hand lacks.
#include <immintrin.h>

#include <cstdint>

#include "engine/kernels.h"

namespace rlt::engine {
namespace {

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

RLT_INLINE const V& vec(const float* x) { return *reinterpret_cast<const V*>(x); }
RLT_INLINE V& vec(float* x) { return *reinterpret_cast<V*>(x); }
// x - 0 is x, which compilers know; x + 0 is not where x is -0.
RLT_INLINE V splat(float x) { return x - V{}; }
RLT_INLINE V larger(V a, V b) { return a > b ? a : b; }
RLT_INLINE float larger(float a, float b) { return a > b ? a : b; }

RLT_INLINE float fold_sum(V x) {
  float sum[kLanes];
  vec(sum) = x;
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
  }
  return sum[0];
}

RLT_INLINE float fold_peak(V x) {
  float peak = x[0];
  for (int j = 1; j < kLanes; ++j) peak = larger(peak, x[j]);
  return peak;
}

// ---- tiles ----

// How many panels a tile of so many rows takes at once: enough sums that are independent of each other to
// hide the latency of the multiply-add, few enough to stay in registers with the weights being widened.
constexpr int panels_at_once(int rows, int step) {
  if (kLanes == 16) return rows == 1 ? 8 : 4;
  return rows == 1 ? 4 : rows + step <= 4 ? 2 : 1;
}

// The element types of panels: Step rows of k are read at a time, and row<S> is the S-th of them.
struct F32 {
  using Element = float;
  static constexpr int kStep = 1;
  template <int S>
  RLT_INLINE V row(const float* b, int v) {
    return vec(b + v * kLanes);
  }
};

struct BF16 {
  using Element = uint16_t;
  static constexpr int kStep = 2;
  template <int S>
  RLT_INLINE V row(const uint16_t* b, int v) {
    const U words = *reinterpret_cast<const U*>(b + v * kLanes * 2);
    return S == 0 ? (V)(words << 16) : (V)(words & 0xffff0000U);
  }
};

struct F16 {
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
#else
    const U half = __builtin_convertvector(*reinterpret_cast<const H*>(b + v * kLanes), U);
    const U magnitude = (half & 0x7fffU) << 13, sign = (half & 0x8000U) << 16;
    const U finite = (U)((V)magnitude * 0x1p112f);
    return (V)((magnitude >= 0x0f800000U ? (magnitude | 0x7f800000U) : finite) | sign);
#endif
  }
};

// One row of k for all of a tile. Few rows are kept in registers while panels stream by; many rows are
// streamed past the panels.
template <class W, int Rows, int Panels, int S>
RLT_INLINE void multiply_row(const float* const* a, int64_t k, const typename W::Element* b,
                             int64_t panel_stride, V (&sum)[Rows][Panels * kVectors]) {
  if (Rows < 4) {
    V x[Rows];
    RLT_UNROLL for (int i = 0; i < Rows; ++i) x[i] = splat(a[i][k + S]);
    RLT_UNROLL for (int p = 0; p < Panels; ++p) {
      RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
        const V w = W::template row<S>(b + p * panel_stride, v);
        RLT_UNROLL for (int i = 0; i < Rows; ++i) sum[i][p * kVectors + v] += x[i] * w;
      }
    }
    return;
  }
  V w[Panels * kVectors];
  RLT_UNROLL for (int p = 0; p < Panels; ++p) {
    RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
      w[p * kVectors + v] = W::template row<S>(b + p * panel_stride, v);
    }
  }
  RLT_UNROLL for (int i = 0; i < Rows; ++i) {
    const V x = splat(a[i][k + S]);
    RLT_UNROLL for (int j = 0; j < Panels * kVectors; ++j) sum[i][j] += x * w[j];
  }
}

// Panels [first, first + Panels) of t. What the loops over k do besides multiplying counts where two threads
// share a core's instruction slots, so they are unrolled, and the steps are constants where panels are dense.
template <class W, int Rows, int Panels>
RLT_INLINE void multiply_panels(const Tile& t, int64_t first) {
  using Element = typename W::Element;
  // Rows to fetch ahead: the processor's own prefetching stops at the end of each page.
  constexpr int64_t kAhead = 24;
  constexpr int64_t kUnrolled = 4 * W::kStep, kDense = W::kStep * kPanel;
  const float* a[Rows];
  V sum[Rows][Panels * kVectors];
  RLT_UNROLL for (int i = 0; i < Rows; ++i) {
    a[i] = t.a[i];
    RLT_UNROLL for (int j = 0; j < Panels * kVectors; ++j) {
      sum[i][j] = t.store == Store::kContinue ? vec(t.c[i] + first * kPanel + j * kLanes) : V{};
    }
  }
  const Element* b = static_cast<const Element*>(t.b) + first * t.panel_stride;
  const int64_t panel_stride = t.panel_stride;
  int64_t k = 0;
  const auto multiply_step = [&](int64_t i, int64_t step) __attribute__((always_inline)) {
    multiply_row<W, Rows, Panels, 0>(a, k + i * W::kStep, b + i * step, panel_stride, sum);
    if (W::kStep == 1) return;
    multiply_row<W, Rows, Panels, W::kStep - 1>(a, k + i * W::kStep, b + i * step, panel_stride, sum);
  };
  const auto fetch = [&](int64_t i, int64_t step) __attribute__((always_inline)) {
    RLT_UNROLL for (int p = 0; p < Panels; ++p) {
      _mm_prefetch(b + p * panel_stride + (kAhead + i) * step, _MM_HINT_T0);
    }
  };
  if (t.ahead != nullptr) {
    const int64_t half = kUnrolled / 2 * t.ahead_step;
    const auto panel_bytes = panel_stride * static_cast<int64_t>(sizeof(Element));
    const char* ahead = t.ahead + first * panel_bytes;
    for (; k + kUnrolled <= t.k; k += kUnrolled, b += 4 * kDense, ahead += 2 * half) {
      RLT_UNROLL for (int p = 0; p < Panels; ++p) {
        _mm_prefetch(ahead + p * panel_bytes, _MM_HINT_T0);
        _mm_prefetch(ahead + p * panel_bytes + half, _MM_HINT_T0);
      }
      RLT_UNROLL for (int i = 0; i < 4; ++i) multiply_step(i, kDense);
    }
  } else if (t.k_stride == kPanel) {
    for (; k + kUnrolled <= t.k; k += kUnrolled, b += 4 * kDense) {
      RLT_UNROLL for (int i = 0; i < 4; ++i) {
        fetch(i, kDense);
        multiply_step(i, kDense);
      }
    }
  }
  const int64_t step = W::kStep * t.k_stride;
  for (; k + W::kStep <= t.k; k += W::kStep, b += step) {
    fetch(0, step);
    multiply_step(0, step);
  }
  if (k < t.k) multiply_row<W, Rows, Panels, 0>(a, k, b, panel_stride, sum);
  RLT_UNROLL for (int i = 0; i < Rows; ++i) {
    float* c = t.c[i] + first * kPanel;
    RLT_UNROLL for (int j = 0; j < Panels * kVectors; ++j) {
      V y = sum[i][j];
      if (t.bias != nullptr) y += vec(t.bias + first * kPanel + j * kLanes);
      if (t.store == Store::kAdd) y += vec(c + j * kLanes);
      vec(c + j * kLanes) = y;
    }
  }
}

template <class W, int Rows>
void multiply_rows(const Tile& t) {
  constexpr int kMany = panels_at_once(Rows, W::kStep);
  int64_t p = 0;
  for (; p + kMany <= t.panels; p += kMany) multiply_panels<W, Rows, kMany>(t, p);
  for (; p < t.panels; ++p) multiply_panels<W, Rows, 1>(t, p);
}

template <class W>
void multiply(const Tile& t) {
  switch (t.rows) {
    case 1:
      return multiply_rows<W, 1>(t);
    case 2:
      return multiply_rows<W, 2>(t);
    case 3:
      return multiply_rows<W, 3>(t);
    case 4:
      return multiply_rows<W, 4>(t);
    case 5:
      return multiply_rows<W, 5>(t);
    case 6:
      return multiply_rows<W, 6>(t);
    default:
      refuse_tile(t.rows);
  }
}

#include "engine/rows_impl.h"

constexpr Kernels kKernels{panels_at_once(kTileRows, 1),
                           multiply<F32>,
                           multiply<BF16>,
                           multiply<F16>,
                           rms_norm,
                           layer_norm,
                           rotate,
                           scale,
                           add,
                           activate,
                           gate,
                           softcap,
                           softmax,
                           peak,
                           sum_exp,
                           exp_blocks,
                           at_least};

}  // namespace
}  // namespace rlt::engine
