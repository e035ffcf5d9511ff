// Panels of weights in few bits to panels of bfloat16 or floats; part of set_impl.h, inside its namespace.

namespace few {

#if defined(__AVX512BF16__)
constexpr FewLayout kLayout = FewLayout::kPairs;
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr FewLayout kLayout = FewLayout::kBytes;
#else
constexpr FewLayout kLayout = FewLayout::kPlain;
#endif

constexpr bool kAlwaysRounds = kMultiplyPairs.rows > 0;

// Vectors of floats that 16 words of two bfloat16 are made of: the 16 outputs of a row of k, then those of
// the next; with kPairs each output's two side by side.
constexpr int kFloats = 2 * kVectors;
struct Line {
  V part[kFloats];
};

// Vector v of line i's values of four bits, among higher bits.
RLT_INLINE U fours(const uint8_t* from, int i, int v) {
  return *reinterpret_cast<const U*>(from + v % kVectors * 4 * kLanes) >> (4 * (2 * i + v / kVectors));
}

// The numbers of 16 outputs, each twice.
RLT_INLINE Line twice(const uint8_t* from, bool halves) {
  alignas(64) float wide[kPanel];
  RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
    vec(wide + v * kLanes) = halves ? F16::row<0>(reinterpret_cast<const uint16_t*>(from), v)
                                    : vec(reinterpret_cast<const float*>(from) + v * kLanes);
  }
  Line line;
#if defined(__AVX512BF16__)
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const V x = vec(wide);
  line.part[0] = (V)_mm512_maskz_permutexvar_ps(0xffff, low, (__m512)x);
  line.part[1] =
      (V)_mm512_maskz_permutexvar_ps(0xffff, _mm512_add_epi32(low, _mm512_set1_epi32(8)), (__m512)x);
#else
  RLT_UNROLL for (int v = 0; v < kFloats; ++v) line.part[v] = vec(wide + v % kVectors * kLanes);
#endif
  return line;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// The 16 values that four bits stand for, by their bytes, which are shuffled faster than floats across lanes.
struct Table {
  __m256i bytes[4];

  RLT_INLINE Table of(const float* values) {
    Table t;
    for (int i = 0; i < 4; ++i) {
      alignas(16) uint8_t at[16];
      for (int q = 0; q < 16; ++q) at[q] = reinterpret_cast<const uint8_t*>(values)[4 * q + i];
      t.bytes[i] = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i*>(at));
    }
    return t;
  }
  // Line i of those that 64 bytes hold.
  RLT_INLINE Line look_up(const Table& t, const uint8_t* from, int i) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i / 2 * 32)),
                  q = _mm256_and_si256(i % 2 == 0 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
    __m256i part[4];
    RLT_UNROLL for (int b = 0; b < 4; ++b) part[b] = _mm256_shuffle_epi8(t.bytes[b], q);
    const __m256i low[2] = {_mm256_unpacklo_epi8(part[0], part[1]), _mm256_unpackhi_epi8(part[0], part[1])},
                  high[2] = {_mm256_unpacklo_epi8(part[2], part[3]), _mm256_unpackhi_epi8(part[2], part[3])};
    return {{(V)_mm256_unpacklo_epi16(low[0], high[0]), (V)_mm256_unpackhi_epi16(low[0], high[0]),
             (V)_mm256_unpacklo_epi16(low[1], high[1]), (V)_mm256_unpackhi_epi16(low[1], high[1])}};
  }
};
#else
// The 16 values that four bits stand for, in registers where there are enough.
struct Table {
  V part[kVectors];

  RLT_INLINE Table of(const float* values) {
    Table t;
    RLT_UNROLL for (int v = 0; v < kVectors; ++v) t.part[v] = vec(values + v * kLanes);
    return t;
  }
  // Those that the low four bits number.
  RLT_INLINE V look_up(const Table& t, U q) {
#if defined(__AVX512F__)
    return (V)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)q, (__m512)t.part[0]);
#elif defined(RLT_NEON)
    // The 64 bytes of the table, four for each number.
    const U first = (q & 15) * 0x04040404U + 0x03020100U;
    const uint8x16x4_t all = {
        {(uint8x16_t)t.part[0], (uint8x16_t)t.part[1], (uint8x16_t)t.part[2], (uint8x16_t)t.part[3]}};
    return (V)vqtbl4q_u8(all, (uint8x16_t)first);
#else
    V x = {};
    for (int j = 0; j < kLanes; ++j) x[j] = t.part[(q[j] & 15) / kLanes][(q[j] & 15) % kLanes];
    return x;
#endif
  }
  // Line i of those that 64 bytes hold.
  RLT_INLINE Line look_up(const Table& t, const uint8_t* from, int i) {
    Line line;
    RLT_UNROLL for (int v = 0; v < kFloats; ++v) line.part[v] = look_up(t, fours(from, i, v));
    return line;
  }
};
#endif

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
#if defined(__AVX512BF16__)
RLT_INLINE V rounded(const Line& line) {
  return (V)_mm512_cvtne2ps_pbh((__m512)line.part[1], (__m512)line.part[0]);
}

RLT_INLINE void put(const Line& line, uint16_t* words) {
  vec(reinterpret_cast<float*>(words)) = rounded(line);
}
#else
RLT_INLINE V rounded(V x) { return (V)(round_high(x) & 0xffff0000); }

RLT_INLINE void put(const Line& line, uint16_t* words) {
  RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
    *reinterpret_cast<U*>(words + 2 * v * kLanes) =
        (U)rounded(line.part[v]) >> 16 | (U)rounded(line.part[kVectors + v]);
  }
}
#endif

// What T(q) and the rest of w are made of.
enum class Form {
  kBytes,
  kScaledBytes,  // with a factor
  kTable,
  kTableAndAddend,
  kCount,  // q·scale + addend, which may stand for what the table starts from; 0 has no sign then
};
#if defined(__AVX512F__)
constexpr bool kCounts = false;  // looking up is a single operation
#else
constexpr bool kCounts = true;
#endif

// Has `take` have the lines of k values, in order, of a panel or of all that are kept together. Returns the
// end of the blocks.
template <int Panels, Form kForm, class Take>
RLT_INLINE const uint8_t* lines_as(const FewBits& by, const uint8_t* blocks, int64_t k, int64_t ahead,
                                   const Take& take) {
  constexpr bool kInBytes = kForm == Form::kBytes || kForm == Form::kScaledBytes,
                 kAdds = kForm == Form::kTableAndAddend || kForm == Form::kCount,
                 kLooksUp = kForm == Form::kTable || kForm == Form::kTableAndAddend;
  constexpr int64_t kRows = kInBytes ? 2 : 4;  // lines that 64 bytes hold
  const bool halves = by.halves, adds = by.adds;
  const int64_t together = by.together, index = Panels > 1 ? 0 : by.index, values = by.values,
                addends = kPanel * (halves ? 2 : 4), scales = adds ? 2 * addends : addends,
                bytes = together * by.block;
  const float factor = by.factor, least = kForm == Form::kCount ? by.table[0] : 0;
  Table table = {};
  if (kLooksUp) table = Table::of(by.table);
  for (int64_t first = 0; first < k; first += values, blocks += bytes) {
    Line scale[Panels], addend[Panels];
    RLT_UNROLL for (int p = 0; p < Panels; ++p) {
      const uint8_t* const numbers = blocks + (index + p) * scales;
      scale[p] = twice(numbers, halves);
      if (kAdds && adds) {
        addend[p] = twice(numbers + addends, halves);
      } else {
        RLT_UNROLL for (int v = 0; v < kFloats; ++v) addend[p].part[v] = scale[p].part[v] * least;
      }
      __builtin_prefetch(numbers + ahead, 0, 3);
    }
    const uint8_t* q = blocks + together * scales + index * 64;
    for (int64_t row = 0; row < values / 2; row += kRows, q += together * 64) {
      RLT_UNROLL for (int p = 0; p < Panels; ++p) {
        __builtin_prefetch(q + p * 64 + ahead, 0, 3);
        RLT_UNROLL for (int i = 0; i < kRows; ++i) {
          Line line;
          if (kLooksUp) line = Table::look_up(table, q + p * 64, i);
          RLT_UNROLL for (int v = 0; v < kFloats; ++v) {
            V& x = line.part[v];
            if (kInBytes) x = signed_bytes(q + p * 64 + i * 2 * kPanel + v * kLanes);
            if (kForm == Form::kCount) x = __builtin_convertvector((I)(fours(q + p * 64, i, v) & 15), V);
            x *= scale[p].part[v];
            if (kForm == Form::kScaledBytes) x *= factor;
            if (kAdds) x += addend[p].part[v];
          }
          take(p, first / 2 + row + i, line);
        }
      }
    }
  }
  return blocks;
}

template <int Panels, class Take>
RLT_INLINE const uint8_t* lines(const FewBits& by, const uint8_t* blocks, int64_t k, int64_t ahead,
                                const Take& take) {
  if (by.bytes && by.factor != 1) return lines_as<Panels, Form::kScaledBytes>(by, blocks, k, ahead, take);
  if (by.bytes) return lines_as<Panels, Form::kBytes>(by, blocks, k, ahead, take);
  if (kCounts && by.counts) return lines_as<Panels, Form::kCount>(by, blocks, k, ahead, take);
  if (!kCounts && by.adds) return lines_as<Panels, Form::kTableAndAddend>(by, blocks, k, ahead, take);
  return lines_as<Panels, Form::kTable>(by, blocks, k, ahead, take);
}

const uint8_t* unpack(const FewBits& by, const uint8_t* blocks, int64_t k, int64_t ahead, void* panel,
                      int64_t) {
  if (!kAlwaysRounds && !by.rounds) {
    auto* floats = static_cast<float*>(panel);
    return lines<1>(
        by, blocks, k, ahead, [&](int, int64_t, const Line& line) __attribute__((always_inline)) {
          RLT_UNROLL for (int v = 0; v < kFloats; ++v, floats += kLanes) vec(floats) = line.part[v];
        });
  }
  auto* words = static_cast<uint16_t*>(panel);
  return lines<1>(
      by, blocks, k, ahead, [&](int, int64_t, const Line& line) __attribute__((always_inline)) {
        put(line, words);
        words += 2 * kPanel;
      });
}

#if defined(__AVX2__)
// Rows of x that a line takes: of words, or of floats.
#if defined(__AVX512BF16__)
constexpr int kLineRows = 1;
#else
constexpr int kLineRows = 2;
#endif

// Adds a line's products with those rows, which lie one behind the other.
template <bool kRounds, int Rows>
RLT_INLINE void add_products(const float* a, const Line& line, V (&sum)[Rows][kVectors]) {
#if defined(__AVX512BF16__)
  const V w = rounded(line);
  RLT_UNROLL for (int i = 0; i < Rows; ++i) Pairs::add_product(sum[i][0], Pairs::spread(a + i), w);
#else
  RLT_UNROLL for (int v = 0; v < kFloats; ++v) {
    const V w = kRounds ? rounded(line.part[v]) : line.part[v];
    RLT_UNROLL for (int i = 0; i < Rows; ++i) {
      F32::add_product(sum[i][v % kVectors], F32::spread(a + v / kVectors * Rows + i), w);
    }
  }
#endif
}

// Lines are multiplied as they come, in registers: in the order of multiply_pairs, or of multiply_bf16 and
// multiply_f32 where there is none of those, to the same bits.
template <bool kRounds, int Rows, int Panels>
RLT_INLINE void multiply_panels(const Tile& t, const FewPanel& from, int64_t panel) {
  V sum[Panels][Rows][kVectors] = {};
  lines<Panels>(
      *from.by, from.blocks, t.k * 2 / kLineRows,
      from.ahead, [&](int p, int64_t k, const Line& line) __attribute__((always_inline)) {
        add_products<kRounds, Rows>(t.a + k * kLineRows * Rows, line, sum[p]);
      });
  RLT_UNROLL for (int p = 0; p < Panels; ++p, ++panel) {
    RLT_UNROLL for (int i = 0; i < Rows; ++i) {
      RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
        const int64_t column = panel * kPanel + v * kLanes;
        V& c = vec(t.c + i * t.c_stride + column);
        V y = sum[p][i][v];
        if (t.bias != nullptr) y += vec(t.bias + column);
        c = t.store == Store::kAdd ? y + c : y;
      }
    }
  }
}

// More rows than the first have sums enough in one panel; with more than the second, unpacking panels for
// multiply_bf16 is as fast.
constexpr int kRowsOfTwo = kLanes == 16 ? 6 : 1, kMostRowsOfFew = kLanes == 16 ? 16 : 2;

// Two panels at once where they are few rows: one sum alone waits longer for its last product than a line
// takes.
template <int Rows>
void multiply_rows(const Tile& t, const FewPanel* panels) {
  constexpr int kAtOnce = Rows <= kRowsOfTwo ? 2 : 1;
  for (int64_t p = 0; p < t.panels;) {
    const FewBits& by = *panels[p].by;
    const bool all = by.together == kAtOnce && by.index == 0 && p + kAtOnce <= t.panels;
    if (kAlwaysRounds || by.rounds) {
      all ? multiply_panels<true, Rows, kAtOnce>(t, panels[p], p)
          : multiply_panels<true, Rows, 1>(t, panels[p], p);
    } else {
      all ? multiply_panels<kAlwaysRounds, Rows, kAtOnce>(t, panels[p], p)
          : multiply_panels<kAlwaysRounds, Rows, 1>(t, panels[p], p);
    }
    p += all ? kAtOnce : 1;
  }
}

template <int Rows = kMostRowsOfFew>
void multiply(const Tile& t, const FewPanel* panels) {
  if (t.rows == Rows) return multiply_rows<Rows>(t, panels);
  if constexpr (Rows > 1) {
    multiply<Rows - 1>(t, panels);
  } else {
    refuse_tile(t.rows, kMostRowsOfFew);
  }
}
#endif

}  // namespace few
