#include "kernels/quant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/kernels.h"

// The same functions for three instruction sets, of which the loader picks one. Products and sums are never
// contracted (CMakeLists.txt), so all give the same bits.
#define RLT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define RLT_INLINE static inline __attribute__((always_inline))

namespace rlt {
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

// The 16 values of NF4 (Dettmers 2023, appendix E), as bitsandbytes has them.
constexpr float kNormal[16] = {-1.0f,
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
  const V low = *reinterpret_cast<const V*>(kNormal), high = *reinterpret_cast<const V*>(kNormal + 8);
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

// Eight groups of 32 values: d, dmin, a scale and a minimum of six bits each for a group, and the halves of
// 32 bytes for two groups. w = d·s·q - dmin·m
template <class To>
RLT_INLINE void q4_k_block(const uint8_t* b, const To& to) {
  const float d = half_at(b), least = half_at(b + 2);
  const uint8_t* packed = b + 4;
  for (int g = 0; g < 8; ++g) {
    const uint8_t low = packed[g + (g < 4 ? 0 : 4)];
    const int scale = g < 4 ? low & 63 : (low & 15) | (packed[g - 4] >> 2 & 48),
              minimum = g < 4 ? packed[g + 4] & 63 : low >> 4 | (packed[g] >> 2 & 48);
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

constexpr float kInverse127 = 7.874015718698502e-3f;

// Values [first, first + count) of a row; first is a multiple of the block, and count is or reaches the end.
template <class To>
RLT_INLINE void values(Quant quant, const uint8_t* row, int64_t first, int64_t count, To to) {
  if (quant == Quant::kInt8) {
    const float absmax = float_at(row);
    const uint8_t* const q = row + 4 + first;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) To::put(to, i, signed_at(q + i) * absmax * kInverse127);
    if (i == count) return;
    uint8_t rest[kLanes] = {};
    std::copy_n(q + i, count - i, rest);
    std::remove_reference_t<decltype(*to.y)> last[kLanes];
    To::put(To{last}, 0, signed_at(rest) * absmax * kInverse127);
    std::copy_n(last, count - i, to.y + i);
    return;
  }
  const QuantFormat& format = format_of(quant);
  const uint8_t* b = row + first / format.values * format.bytes;
  const auto each = [&](auto block) __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; i += format.values, b += format.bytes) block(b, To{to.y + i});
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

// y [8, 8] = xᵀ in words.
RLT_INLINE void transpose8(const uint32_t* x, int64_t x_stride, uint32_t* y, int64_t y_stride) {
  U r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = *reinterpret_cast<const U*>(x + i * x_stride);
  const U low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shuffle(r[i], r[i + 1], low);
    t[i + 1] = __builtin_shuffle(r[i], r[i + 1], high);
  }
  const U first = {0, 1, 8, 9, 4, 5, 12, 13}, second = {2, 3, 10, 11, 6, 7, 14, 15};
  for (int i = 0; i < 8; i += 4) {
    r[i] = __builtin_shuffle(t[i], t[i + 2], first);
    r[i + 1] = __builtin_shuffle(t[i], t[i + 2], second);
    r[i + 2] = __builtin_shuffle(t[i + 1], t[i + 3], first);
    r[i + 3] = __builtin_shuffle(t[i + 1], t[i + 3], second);
  }
  const U lows = {0, 1, 2, 3, 8, 9, 10, 11}, highs = {4, 5, 6, 7, 12, 13, 14, 15};
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<U*>(y + i * y_stride) = __builtin_shuffle(r[i], r[i + 4], lows);
    *reinterpret_cast<U*>(y + (i + 4) * y_stride) = __builtin_shuffle(r[i], r[i + 4], highs);
  }
}

constexpr int64_t kChunk = 256;  // values of a row at a time, a multiple of every block

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
  while (code < 15 && x > (kNormal[code] + kNormal[code + 1]) / 2) ++code;
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

RLT_CLONES void dequantize_row(Quant quant, const uint8_t* row, int64_t in, float* y) {
  values(quant, row, 0, in, ToFloats{y});
}

RLT_CLONES void dequantize_row(Quant quant, const uint8_t* row, int64_t in, uint16_t* y) {
  values(quant, row, 0, in, ToBF16{y});
}

RLT_CLONES void dequantize_panel(Quant quant, const uint8_t* rows, int64_t count, int64_t in,
                                 uint16_t* panel) {
  alignas(64) uint16_t lines[kPanel * kChunk];
  const int64_t row_bytes = format_of(quant).row_bytes(in);
  std::memset(lines + count * kChunk, 0, static_cast<size_t>((kPanel - count) * kChunk) * sizeof *lines);
  for (int64_t first = 0; first < in; first += kChunk, panel += kPanel * kChunk) {
    const int64_t n = std::min(kChunk, in - first), words = (n + 1) / 2;
    for (int64_t r = 0; r < count; ++r) {
      values(quant, rows + r * row_bytes, first, n, ToBF16{lines + r * kChunk});
      if (n % 2 != 0) lines[r * kChunk + n] = 0;
    }
    const auto* from = reinterpret_cast<const uint32_t*>(lines);
    auto* to = reinterpret_cast<uint32_t*>(panel);
    int64_t w = 0;
    for (; w + 8 <= words; w += 8) {
      transpose8(from + w, kChunk / 2, to + w * kPanel, kPanel);
      transpose8(from + 8 * (kChunk / 2) + w, kChunk / 2, to + w * kPanel + 8, kPanel);
    }
    for (; w < words; ++w) {
      for (int64_t r = 0; r < kPanel; ++r) to[w * kPanel + r] = from[r * (kChunk / 2) + w];
    }
  }
}

}  // namespace rlt
