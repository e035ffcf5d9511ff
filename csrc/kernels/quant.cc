#include "kernels/quant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/kernels.h"

// The same functions for three instruction sets of x86-64, of which the loader picks one. Products and sums
// are never contracted (CMakeLists.txt), so all give the same bits.
#if defined(__x86_64__)
#define RLT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define RLT_CLONES
#endif
#define RLT_INLINE static inline __attribute__((always_inline))

namespace rlt {

// The 16 values of NF4 (Dettmers 2023, appendix E), as bitsandbytes has them.
const float kNF4Values[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};

namespace {

// All that takes or returns vectors is inlined, so their ABI does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

constexpr int kLanes = 8;
#define RLT_VECTOR(T) vector_size(kLanes * sizeof(T)), aligned(alignof(T)), may_alias
typedef float V __attribute__((RLT_VECTOR(float)));
typedef int32_t I __attribute__((RLT_VECTOR(int32_t)));
typedef uint32_t U __attribute__((RLT_VECTOR(uint32_t)));
typedef uint16_t H __attribute__((RLT_VECTOR(uint16_t)));
typedef uint8_t B __attribute__((RLT_VECTOR(uint8_t)));
typedef int8_t S __attribute__((RLT_VECTOR(int8_t)));
#undef RLT_VECTOR

constexpr int64_t kNF4Block = 64;

float float_at(const uint8_t* b) {
  float x;
  std::memcpy(&x, b, sizeof x);
  return x;
}

// The float16 at b.
float half_at(const uint8_t* b) {
  const uint32_t bits = b[0] | uint32_t{b[1]} << 8, magnitude = (bits & 0x7fffU) << 13;
  float finite;
  std::memcpy(&finite, &magnitude, sizeof finite);
  finite *= 0x1p112f;  // also normalises subnormal values
  uint32_t out;
  std::memcpy(&out, &finite, sizeof out);
  if (magnitude >= 0x0f800000U) out = magnitude | 0x7f800000U;
  out |= (bits & 0x8000U) << 16;
  float x;
  std::memcpy(&x, &out, sizeof x);
  return x;
}

// Eight bytes as floats.
RLT_INLINE I bytes_at(const uint8_t* b) { return __builtin_convertvector(*reinterpret_cast<const B*>(b), I); }
RLT_INLINE V floats(I x) { return __builtin_convertvector(x, V); }

// The bits of bfloat16 nearest to x, ties to even, in the low halves. Weights are finite.
RLT_INLINE U rounded(V x) {
  const U bits = (U)x;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Where dequantised values go: eight in a row, or eight of even index and eight of odd index alternating.
struct ToFloats {
  float* y;
  RLT_INLINE void put(const ToFloats& to, int64_t at, V x) { *reinterpret_cast<V*>(to.y + at) = x; }
  RLT_INLINE void put_pairs(const ToFloats& to, int64_t at, V even, V odd) {
    for (int j = 0; j < kLanes; ++j) {
      to.y[at + 2 * j] = even[j];
      to.y[at + 2 * j + 1] = odd[j];
    }
  }
};
struct ToBF16 {
  uint16_t* y;
  RLT_INLINE void put(const ToBF16& to, int64_t at, V x) {
    *reinterpret_cast<H*>(to.y + at) = __builtin_convertvector(rounded(x), H);
  }
  RLT_INLINE void put_pairs(const ToBF16& to, int64_t at, V even, V odd) {
    *reinterpret_cast<U*>(to.y + at) = rounded(even) | rounded(odd) << 16;
  }
};

template <class To>
RLT_INLINE void nf4_block(const uint8_t* b, const To& to) {
  const V low = *reinterpret_cast<const V*>(kNF4Values), high = *reinterpret_cast<const V*>(kNF4Values + 8);
  const float absmax = float_at(b);
  for (int i = 0; i < 4; ++i) {
    const I q = bytes_at(b + 4 + 8 * i);
    To::put_pairs(to, 16 * i, __builtin_shuffle(low, high, q >> 4) * absmax,
                  __builtin_shuffle(low, high, q & 15) * absmax);
  }
}

// Q4_0 and Q4_1: byte i holds values i and i + 16.
template <class To, class Map>
RLT_INLINE void halves(const uint8_t* b, const To& to, const Map& map) {
  for (int i = 0; i < 16; i += kLanes) {
    const I q = bytes_at(b + i);
    To::put(to, i, map(q & 15));
    To::put(to, i + 16, map(q >> 4));
  }
}

template <class To>
RLT_INLINE void q4_0_block(const uint8_t* b, const To& to) {
  const float d = half_at(b);
  halves(
      b + 2, to, [&](I q) __attribute__((always_inline)) { return floats(q - 8) * d; });
}

template <class To>
RLT_INLINE void q4_1_block(const uint8_t* b, const To& to) {
  const float d = half_at(b), m = half_at(b + 2);
  halves(
      b + 4, to, [&](I q) __attribute__((always_inline)) { return floats(q) * d + m; });
}

RLT_INLINE V signed_at(const uint8_t* b) {
  return floats(__builtin_convertvector(*reinterpret_cast<const S*>(b), I));
}

template <class To>
RLT_INLINE void q8_0_block(const uint8_t* b, const To& to) {
  const float d = half_at(b);
  for (int i = 0; i < 32; i += kLanes) To::put(to, i, signed_at(b + 2 + i) * d);
}

struct ScaleAndMinimum {
  int scale, minimum;
};

// Those of a group of Q4_K, six bits each in 12 bytes.
RLT_INLINE ScaleAndMinimum six_bits(const uint8_t* packed, int g) {
  if (g < 4) return {packed[g] & 63, packed[g + 4] & 63};
  const uint8_t low = packed[g + 4];
  return {(low & 15) | (packed[g - 4] >> 2 & 48), low >> 4 | (packed[g] >> 2 & 48)};
}

// Eight groups of 32 values: d, dmin, a scale and a minimum of six bits each for a group, and the halves of
// 32 bytes for two groups. w = d·s·q - dmin·m
template <class To>
RLT_INLINE void q4_k_block(const uint8_t* b, const To& to) {
  const float d = half_at(b), least = half_at(b + 2);
  for (int g = 0; g < 8; ++g) {
    const auto [scale, minimum] = six_bits(b + 4, g);
    const float s = d * static_cast<float>(scale), m = least * static_cast<float>(minimum);
    const uint8_t* const qs = b + 16 + g / 2 * 32;
    for (int i = 0; i < 32; i += kLanes) {
      To::put(to, 32 * g + i, floats(bytes_at(qs + i) >> (g % 2 * 4) & 15) * s - m);
    }
  }
}

// Eight groups of 32 values, each with two scales: 128 bytes of low halves, 64 of two high bits, 16 signed
// scales, d. w = d·s·(q - 32)
template <class To>
RLT_INLINE void q6_k_block(const uint8_t* b, const To& to) {
  const float d = half_at(b + 208);
  for (int g = 0; g < 8; ++g) {
    const int half = g / 4, part = g % 4;
    const uint8_t *const low = b + half * 64 + part % 2 * 32, *const high = b + 128 + half * 32;
    for (int i = 0; i < 32; i += kLanes) {
      const I q = (bytes_at(low + i) >> (part / 2 * 4) & 15) | (bytes_at(high + i) >> (part * 2) & 3) << 4;
      const float s = d * static_cast<float>(static_cast<int8_t>(b[192 + 2 * g + i / 16]));
      To::put(to, 32 * g + i, floats(q - 32) * s);
    }
  }
}

// All of a row of `in` values.
template <class To>
RLT_INLINE void values(Quant quant, const uint8_t* row, int64_t in, To to) {
  if (quant == Quant::kInt8) {
    const float absmax = float_at(row);
    const uint8_t* const q = row + 4;
    int64_t i = 0;
    for (; i + kLanes <= in; i += kLanes) To::put(to, i, signed_at(q + i) * absmax * kInt8Factor);
    if (i == in) return;
    uint8_t rest[kLanes] = {};
    std::copy_n(q + i, in - i, rest);
    std::remove_reference_t<decltype(*to.y)> last[kLanes];
    To::put(To{last}, 0, signed_at(rest) * absmax * kInt8Factor);
    std::copy_n(last, in - i, to.y + i);
    return;
  }
  const QuantFormat& format = format_of(quant);
  const uint8_t* b = row;
  const auto each = [&](auto block) __attribute__((always_inline)) {
    for (int64_t i = 0; i < in; i += format.values, b += format.bytes) block(b, To{to.y + i});
  };
  switch (quant) {
    case Quant::kNF4:
      return each([](const uint8_t* at, const To& t) __attribute__((always_inline)) { nf4_block(at, t); });
    case Quant::kQ4_0:
      return each([](const uint8_t* at, const To& t) __attribute__((always_inline)) { q4_0_block(at, t); });
    case Quant::kQ4_1:
      return each([](const uint8_t* at, const To& t) __attribute__((always_inline)) { q4_1_block(at, t); });
    case Quant::kQ8_0:
      return each([](const uint8_t* at, const To& t) __attribute__((always_inline)) { q8_0_block(at, t); });
    case Quant::kQ4_K:
      return each([](const uint8_t* at, const To& t) __attribute__((always_inline)) { q4_k_block(at, t); });
    default:
      return each([](const uint8_t* at, const To& t) __attribute__((always_inline)) { q6_k_block(at, t); });
  }
}

}  // namespace

const QuantFormat* quant_formats() {
  static constexpr QuantFormat formats[kQuantFormats] = {
      {Quant::kInt8, "int8", 1, 1, 4},     {Quant::kNF4, "nf4", kNF4Block, 36, 0},
      {Quant::kQ4_0, "q4_0", 32, 18, 0},   {Quant::kQ4_1, "q4_1", 32, 20, 0},
      {Quant::kQ8_0, "q8_0", 32, 34, 0},   {Quant::kQ4_K, "q4_k", 256, 144, 0},
      {Quant::kQ6_K, "q6_k", 256, 210, 0},
  };
  return formats;
}

bool can_quantize(Quant quant) { return quant == Quant::kInt8 || quant == Quant::kNF4; }

namespace {

float largest(const float* x, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

// The nearest code, the lower one of two that are as near.
uint8_t normal_code(float x) {
  int code = 0;
  while (code < 15 && x > (kNF4Values[code] + kNF4Values[code + 1]) / 2) ++code;
  return static_cast<uint8_t>(code);
}

}  // namespace

void quantize_row(Quant quant, const float* x, int64_t in, uint8_t* row) {
  const int64_t block = quant == Quant::kInt8 ? in : kNF4Block;
  for (int64_t first = 0; first < in; first += block, x += block) {
    const float absmax = largest(x, block), inverse = 1.0f / std::max(absmax, 1e-38f);
    std::memcpy(row, &absmax, sizeof absmax);
    row += sizeof absmax;
    if (quant == Quant::kInt8) {
      for (int64_t i = 0; i < in; ++i) {
        row[i] = static_cast<uint8_t>(
            static_cast<int8_t>(std::nearbyint(std::clamp(x[i] * inverse, -1.0f, 1.0f) * 127.0f)));
      }
      return;
    }
    for (int64_t i = 0; i < block; i += 2) {
      const auto code = [&](float v) { return normal_code(std::clamp(v * inverse, -1.0f, 1.0f)); };
      *row++ = static_cast<uint8_t>(code(x[i]) << 4 | code(x[i + 1]));
    }
  }
}

void split_block(Quant quant, const uint8_t* row, int64_t first, int64_t n, QuantParts* parts) {
  const QuantFormat& format = format_of(quant);
  const uint8_t* const b = row + format.header + first / format.values * format.bytes;
  const int64_t at = first % format.values;
  const auto each = [&](const auto& q) {
    for (int64_t i = 0; i < n; ++i) parts->q[i] = static_cast<int8_t>(q(i));
  };
  const auto halves_of_16 = [&](const uint8_t* qs) {
    each([&](int64_t i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; });
  };
  const auto scale = [&](float x, float addend = 0) {
    std::memcpy(&parts->scale, &x, sizeof x);
    std::memcpy(&parts->addend, &addend, sizeof addend);
  };
  const auto half = [](const uint8_t* from) { return from[0] | uint32_t{from[1]} << 8; };
  switch (quant) {
    case Quant::kInt8:
      scale(float_at(row));
      return each([&](int64_t i) { return b[i]; });
    case Quant::kNF4:
      scale(float_at(b));
      return each([&](int64_t i) { return i % 2 == 0 ? b[4 + i / 2] >> 4 : b[4 + i / 2] & 15; });
    case Quant::kQ4_0:
      parts->scale = half(b);
      return halves_of_16(b + 2);
    case Quant::kQ4_1:
      parts->scale = half(b);
      parts->addend = half(b + 2);
      return halves_of_16(b + 4);
    case Quant::kQ8_0:
      parts->scale = half(b);
      return each([&](int64_t i) { return b[2 + i]; });
    case Quant::kQ4_K: {
      const auto g = static_cast<int>(at / 32);
      const auto [factor, minimum] = six_bits(b + 4, g);
      scale(half_at(b) * static_cast<float>(factor), -(half_at(b + 2) * static_cast<float>(minimum)));
      return each([&](int64_t i) { return b[16 + g / 2 * 32 + i] >> (g % 2 * 4) & 15; });
    }
    default: {
      const auto g = static_cast<int>(at / 32), part = g % 4;
      const uint8_t *const low = b + g / 4 * 64 + part % 2 * 32 + at % 32, *const high =
                                                                               b + 128 + g / 4 * 32 + at % 32;
      scale(half_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + at / 16])));
      return each([&](int64_t i) {
        return ((low[i] >> (part / 2 * 4) & 15) | (high[i] >> (part * 2) & 3) << 4) - 32;
      });
    }
  }
}

RLT_CLONES void dequantize_row(Quant quant, const uint8_t* row, int64_t in, float* y) {
  values(quant, row, in, ToFloats{y});
}

RLT_CLONES void dequantize_row(Quant quant, const uint8_t* row, int64_t in, uint16_t* y) {
  values(quant, row, in, ToBF16{y});
}

}  // namespace rlt
