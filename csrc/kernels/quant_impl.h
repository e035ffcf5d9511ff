// Panels of weights in few bits to panels of bfloat16; part of set_impl.h, inside its namespace.

namespace few {

// Vectors of floats that 16 words of two bfloat16 are made of. Float j is that of output j/2, of the first
// row of k where j is even and of the second where it is odd.
constexpr int kFloats = 2 * kVectors;
struct Line {
  V part[kFloats];
};

// The numbers of 16 outputs, each twice.
RLT_INLINE Line twice(const uint8_t* from, bool halves) {
  alignas(64) float wide[kPanel];
  RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
    vec(wide + v * kLanes) = halves ? F16::row<0>(reinterpret_cast<const uint16_t*>(from), v)
                                    : vec(reinterpret_cast<const float*>(from) + v * kLanes);
  }
  Line line;
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const V x = vec(wide);
  line.part[0] = (V)_mm512_maskz_permutexvar_ps(0xffff, low, (__m512)x);
  line.part[1] =
      (V)_mm512_maskz_permutexvar_ps(0xffff, _mm512_add_epi32(low, _mm512_set1_epi32(8)), (__m512)x);
#else
  RLT_UNROLL for (int v = 0; v < kFloats; ++v) {
    float both[kLanes];
    for (int j = 0; j < kLanes; ++j) both[j] = wide[(v * kLanes + j) / 2];
    line.part[v] = vec(both);
  }
#endif
  return line;
}

// Those of the table that the low four bits number.
RLT_INLINE V look_up(const float* table, U q) {
#if defined(__AVX512F__)
  return (V)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)q, (__m512)vec(table));
#elif defined(__AVX2__)
  const __m256 low = _mm256_permutevar8x32_ps((__m256)vec(table), (__m256i)q),
               high = _mm256_permutevar8x32_ps((__m256)vec(table + 8), (__m256i)q);
  return (V)_mm256_blendv_ps(low, high, (__m256)(q << 28));
#elif defined(RLT_NEON)
  // The 64 bytes of the table, four for each number.
  const U first = (q & 15) * 0x04040404U + 0x03020100U;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(table);
  const uint8x16x4_t all = {
      {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  return (V)vqtbl4q_u8(all, (uint8x16_t)first);
#else
  V x = {};
  for (int j = 0; j < kLanes; ++j) x[j] = table[q[j] & 15];
  return x;
#endif
}

RLT_INLINE V signed_bytes(const uint8_t* q) {
#if defined(__AVX512F__)
  // The forms with a mask: GCC 12 warns about its own header in the others.
  const I x = (I)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
#elif defined(__AVX2__)
  const I x = (I)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q)));
#else
  I x;
  for (int j = 0; j < kLanes; ++j) x[j] = static_cast<int8_t>(q[j]);
#endif
  return __builtin_convertvector(x, V);
}

// Rounds to the nearest, ties to even; weights are finite and not subnormal.
RLT_INLINE void put(const Line& line, uint16_t* words) {
#if defined(__AVX512BF16__)
  _mm512_storeu_si512(words, (__m512i)_mm512_cvtne2ps_pbh((__m512)line.part[1], (__m512)line.part[0]));
#else
  RLT_UNROLL for (int v = 0; v < kFloats; ++v) {
    const U bits = (U)line.part[v];
    *reinterpret_cast<H*>(words + v * kLanes) =
        __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, H);
  }
#endif
}

template <bool kBytes, bool kAdds, bool kFactor>
RLT_INLINE const uint8_t* unpack_as(const FewBits& by, const uint8_t* blocks, int64_t k, int64_t ahead,
                                    uint16_t* words) {
  constexpr int64_t kRows = kBytes ? 2 : 4;  // of words, that 64 bytes hold
  const int64_t scales = kPanel * (by.halves ? 2 : 4);
  for (int64_t first = 0; first < k; first += by.values) {
    const Line scale = twice(blocks, by.halves);
    Line addend = {};
    if (kAdds) addend = twice(blocks + scales, by.halves);
    __builtin_prefetch(blocks + ahead, 0, 3);
    blocks += kAdds ? 2 * scales : scales;
    const int64_t rows = (k - first < by.values ? k - first : by.values) / 2;
    for (int64_t row = 0; row < rows; row += kRows, blocks += 64) {
      __builtin_prefetch(blocks + ahead, 0, 3);
      RLT_UNROLL for (int i = 0; i < kRows; ++i, words += 2 * kPanel) {
        Line line;
        RLT_UNROLL for (int v = 0; v < kFloats; ++v) {
          V x;
          if (kBytes) {
            x = signed_bytes(blocks + i * 2 * kPanel + v * kLanes);
          } else {
            const U q = *reinterpret_cast<const U*>(blocks + v % kVectors * 4 * kLanes);
            x = look_up(by.table, q >> (4 * (2 * i + v / kVectors)));
          }
          x *= scale.part[v];
          if (kFactor) x *= by.factor;
          // Keeps the compiler from making the product and the sum one operation with one rounding.
          if (kAdds) asm("" : RLT_REGISTER(x));
          line.part[v] = kAdds ? x + addend.part[v] : x;
        }
        put(line, words);
      }
    }
  }
  return blocks;
}

const uint8_t* unpack(const FewBits& by, const uint8_t* blocks, int64_t k, int64_t ahead, uint16_t* panel,
                      int64_t) {
  if (by.adds) return unpack_as<false, true, false>(by, blocks, k, ahead, panel);
  if (!by.bytes) return unpack_as<false, false, false>(by, blocks, k, ahead, panel);
  if (by.factor != 1) return unpack_as<true, false, true>(by, blocks, k, ahead, panel);
  return unpack_as<true, false, false>(by, blocks, k, ahead, panel);
}

}  // namespace few
