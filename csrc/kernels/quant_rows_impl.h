// Weights in few bits to rows of bfloat16, for the sets of AMX; part of set_impl.h, inside its namespace.

namespace few {

// The numbers of 16 outputs as floats.
struct Numbers {
  alignas(64) float of[kPanel];

  RLT_INLINE void read(const uint8_t* from, bool halves, Numbers& to) {
    RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
      vec(to.of + v * kLanes) = halves ? F16::row<0>(reinterpret_cast<const uint16_t*>(from), v)
                                       : vec(reinterpret_cast<const float*>(from) + v * kLanes);
    }
    keep(to);
  }
  RLT_INLINE void scaled(const Numbers& from, float by, Numbers& to) {
    RLT_UNROLL for (int v = 0; v < kPanel; v += kLanes) vec(to.of + v) = vec(from.of + v) * by;
    keep(to);
  }

 private:
  // In memory, from which one is read to all lanes faster than from a register.
  RLT_INLINE void keep(Numbers& n) { asm("" : "+m"(n.of)); }
};

// Signed bytes times a float32.
struct Signed {
  static constexpr float kZero = 0;
  RLT_INLINE V at(const FewBits& by, float scale, float, const uint8_t* q) {
#if defined(__AVX512BF16__)
    // The form with a mask: GCC 12 warns about its own header in the other one.
    const auto wide =
        (I)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
#else
    I wide;
    for (int j = 0; j < kLanes; ++j) wide[j] = static_cast<int8_t>(q[j]);
#endif
    const V x = __builtin_convertvector(wide, V) * scale;
    return by.factor == 1 ? x : x * by.factor;
  }
};

// (q - 128) times a float16. All that is added and multiplied is exact, so a fused operation changes nothing.
struct Offset {
#if defined(__AVX512BF16__)
  // q becomes the second byte of 2¹⁵, which adds it to that.
  static constexpr float kZero = 0x1p15f + 128;
  RLT_INLINE V at(const FewBits&, float scale, float shift, const uint8_t* q) {
    const __m512i power = _mm512_set1_epi32(0x47000000),
                  from = _mm512_setr_epi32(0, 1 << 8, 2 << 8, 3 << 8, 4 << 8, 5 << 8, 6 << 8, 7 << 8, 8 << 8,
                                           9 << 8, 10 << 8, 11 << 8, 12 << 8, 13 << 8, 14 << 8, 15 << 8),
                  all = _mm512_maskz_broadcast_i32x4(0xffff,
                                                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    return (V)_mm512_mask_shuffle_epi8(power, 0x2222222222222222, all, from) * scale + shift;
  }
#else
  static constexpr float kZero = 0;
  RLT_INLINE V at(const FewBits&, float scale, float, const uint8_t* q) {
    I centred;
    for (int j = 0; j < kLanes; ++j) centred[j] = q[j] - 128;
    return __builtin_convertvector(centred, V) * scale;
  }
#endif
};

// 16 floats rounded to the nearest, ties to even; weights are finite and not subnormal.
RLT_INLINE void put(const V (&x)[kVectors], uint16_t* words) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), (__m256i)_mm512_cvtneps_pbh((__m512)x[0]));
#else
  RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
    *reinterpret_cast<H*>(words + v * kLanes) = __builtin_convertvector(round_high(x[v]) >> 16, H);
  }
#endif
}

// The 16 values that four bits stand for, and those of 32 words by the four bits from `Shift` on.
class Table {
 public:
  RLT_INLINE Table of(const V (&x)[kVectors]) {
    Table t;
#if defined(__AVX512BF16__)
    t.words_ = (__m512i)_mm512_cvtne2ps_pbh((__m512)x[0], (__m512)x[0]);
#else
    put(x, t.words_);
#endif
    return t;
  }

  template <int Shift>
  RLT_INLINE void look_up(const Table& t, const uint8_t* from, uint16_t* to) {
#if defined(__AVX512BF16__)
    // Of each word the low five bits count; the table is there twice.
    const __m512i q = _mm512_maskz_srli_epi16(~0U, _mm512_loadu_si512(from), Shift);
    _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi16(~0U, q, t.words_));
#else
    for (int i = 0; i < 32; ++i) {
      uint16_t word;
      __builtin_memcpy(&word, from + 2 * i, sizeof word);
      to[i] = t.words_[word >> Shift & 15];
    }
#endif
  }

 private:
#if defined(__AVX512BF16__)
  __m512i words_;
#else
  uint16_t words_[16];
#endif
};

// To the second-level cache: a panel that comes next would take the first from the one at hand.
RLT_INLINE void fetch(const uint8_t* from) { __builtin_prefetch(from, 0, 2); }

// A block of 16 outputs whose values are bytes; kRun of k follow each other.
template <class Values, int64_t kRun>
RLT_INLINE void unpack_bytes(const FewBits& by, const Numbers& scale, const uint8_t* q, int64_t ahead,
                             uint16_t* rows, int64_t stride) {
  Numbers shift;
  if (Values::kZero != 0) Numbers::scaled(scale, -Values::kZero, shift);
  for (int64_t k = 0; k < by.values; k += kRun, rows += kRun) {
    RLT_UNROLL for (int64_t r = 0; r < kPanel; ++r, q += kRun) {
      if (r * kRun % 64 == 0) fetch(q + ahead);
      V x[kRun / kPanel][kVectors];
      RLT_UNROLL for (int64_t i = 0; i < kRun / kLanes; ++i) {
        const float moved = Values::kZero == 0 ? 0 : shift.of[r];
        x[i / kVectors][i % kVectors] = Values::at(by, scale.of[r], moved, q + i * kLanes);
      }
#if defined(__AVX512BF16__)
      if (kRun == 32) {
        const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)x[kRun / 32][0], (__m512)x[0][0]);
        _mm512_storeu_si512(rows + r * stride, both);
        continue;
      }
#endif
      for (int64_t i = 0; i < kRun / kPanel; ++i) put(x[i], rows + r * stride + i * kPanel);
    }
  }
}

// The same of four bits. Each value of an output is one of 16.
template <bool kAdds>
RLT_INLINE void unpack_fours(const FewBits& by, const Numbers& scale, const Numbers& addend, const uint8_t* q,
                             int64_t ahead, uint16_t* rows, int64_t stride) {
  constexpr int64_t kBytes = 32 * kPanel / 2;  // of 32 k
  for (int64_t r = 0; r < kPanel; r += 4, q += 64, rows += 4 * stride) {
    Table tables[4];
    RLT_UNROLL for (int i = 0; i < 4; ++i) {
      V x[kVectors];
      RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
        x[v] = vec(by.table + v * kLanes) * scale.of[r + i];
        if (kAdds) x[v] += addend.of[r + i];
      }
      tables[i] = Table::of(x);
    }
    for (int64_t k = 0; k < by.values; k += 32) {
      const uint8_t* const from = q + k / 32 * kBytes;
      fetch(from + ahead);
      Table::look_up<0>(tables[0], from, rows + k);
      Table::look_up<4>(tables[1], from, rows + stride + k);
      Table::look_up<8>(tables[2], from, rows + 2 * stride + k);
      Table::look_up<12>(tables[3], from, rows + 3 * stride + k);
    }
  }
}

const uint8_t* unpack(const FewBits& by, const uint8_t* blocks, int64_t k, int64_t ahead, void* out,
                      int64_t stride) {
  auto* rows = static_cast<uint16_t*>(out);
  const int64_t numbers = kPanel * (by.halves ? 2 : 4);
  for (int64_t first = 0; first < k; first += by.values, rows += by.values) {
    Numbers scale, addend;
    Numbers::read(blocks, by.halves, scale);
    if (by.adds) Numbers::read(blocks + numbers, by.halves, addend);
    const uint8_t* const q = blocks + numbers * (by.adds ? 2 : 1);
    fetch(blocks + ahead);
    if (by.adds) {
      unpack_fours<true>(by, scale, addend, q, ahead, rows, stride);
    } else if (!by.bytes) {
      unpack_fours<false>(by, scale, addend, q, ahead, rows, stride);
    } else if (by.halves) {
      unpack_bytes<Offset, 32>(by, scale, q, ahead, rows, stride);
    } else if (by.values == 16) {
      unpack_bytes<Signed, 16>(by, scale, q, ahead, rows, stride);
    } else {
      unpack_bytes<Signed, 32>(by, scale, q, ahead, rows, stride);
    }
    blocks += by.block;
  }
  return blocks;
}

}  // namespace few
