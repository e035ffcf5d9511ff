// Products of bfloat16 by bfdot and bfmmla of arm64; part of set_impl.h, inside its namespace. They are
// written for these instructions in general: the processor's, or loops that do what its instructions are
// defined to do, to the bit, so that other machines test the rest.

namespace mmla {

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
struct Instructions {
  // Lane j of the sum += word j of a · word j of b.
  RLT_INLINE void dot(V& sum, V a, V b) {
    sum = (V)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
  }
  // Lane 2i + j of the sum += words 2i, 2i + 1 of a · words 2j, 2j + 1 of b.
  RLT_INLINE void multiply(V& sum, V a, V b) {
    sum = (V)vbfmmlaq_f32((float32x4_t)sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
  }
};
#endif

struct Loops {
  RLT_INLINE void dot(V& sum, V a, V b) {
    const U x = (U)a, y = (U)b;
    for (int j = 0; j < kLanes; ++j) sum[j] = add_word(sum[j], x[j], y[j]);
  }
  RLT_INLINE void multiply(V& sum, V a, V b) {
    const U x = (U)a, y = (U)b;
    for (int lane = 0; lane < 4; ++lane) {
      const int i = lane / 2 * 2, j = lane % 2 * 2;
      sum[lane] = add_word(add_word(sum[lane], x[i], y[j]), x[i + 1], y[j + 1]);
    }
  }

 private:
  // Arm's definition (BFDotAdd): two products, their sum and what that is added to are each rounded to odd,
  // and subnormal numbers are 0.
  RLT_INLINE float add_word(float sum, uint32_t x, uint32_t y) {
    const float low = to_odd(double{half(x << 16)} * double{half(y << 16)}, 0),
                high = to_odd(double{half(x & 0xffff0000U)} * double{half(y & 0xffff0000U)}, 0);
    return add(sum, add(low, high));
  }
  RLT_INLINE float half(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return flush(x);
  }
  RLT_INLINE float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }
  RLT_INLINE float add(float x, float y) {
    const double a = flush(x), b = flush(y), s = a + b, moved = s - a;
    return to_odd(s, (a - (s - moved)) + (b - moved));
  }
  // s + rest, where rest is what s lacks of the sum that it is: of the two floats around it that with an odd
  // last bit, unless it is a float.
  RLT_INLINE float to_odd(double s, double rest) {
    uint64_t bits;
    __builtin_memcpy(&bits, &s, sizeof bits);
    // First to odd as a double, away from what s was rounded to.
    if (rest != 0 && rest == rest && bits % 2 == 0) {
      bits += (rest > 0) == (s > 0) ? 1 : -1;
      __builtin_memcpy(&s, &bits, sizeof s);
    }
    auto x = static_cast<float>(s);
    uint32_t last;
    __builtin_memcpy(&last, &x, sizeof last);
    // Only finite numbers are inexact.
    if (static_cast<double>(x) != s && __builtin_fabs(s) < 0x1p128) {
      if (__builtin_fabs(static_cast<double>(x)) > __builtin_fabs(s)) --last;
      last |= 1;
      __builtin_memcpy(&x, &last, sizeof x);
    }
    return flush(x);
  }
};

// A row alone is as fast by dot products, which give the same bits.
template <class M>
struct Words : F32 {
  RLT_INLINE V spread(const float* a) { return splat(*a); }
  RLT_INLINE void add_product(V& sum, V x, V w) { M::dot(sum, x, w); }
};

// Two words of two rows. An absent second row is the first again.
RLT_INLINE V words_of(const float* first, const float* second) {
  return V{first[0], first[1], second[0], second[1]};
}

// Panel p of t. Four numbers of a sum are those of two rows and two columns.
template <class M, int Rows>
RLT_INLINE void multiply_panel(const Tile& t, int64_t p) {
  constexpr int kPairs = (Rows + 1) / 2, kColumns = kPanel / 2;
  constexpr int64_t kAhead = 24;  // rows to fetch
  const float* a[2 * kPairs];
  float* c[2 * kPairs];
  RLT_UNROLL for (int i = 0; i < 2 * kPairs; ++i) {
    const int row = i < Rows ? i : Rows - 1;
    a[i] = t.a + row * t.a_stride;
    c[i] = t.c + row * t.c_stride + p * kPanel;
  }
  V sum[kPairs][kColumns];
  RLT_UNROLL for (int i = 0; i < kPairs; ++i) {
    RLT_UNROLL for (int j = 0; j < kColumns; ++j) {
      sum[i][j] = t.store == Store::kContinue ? words_of(c[2 * i] + 2 * j, c[2 * i + 1] + 2 * j) : V{};
    }
  }
  const float* b = static_cast<const float*>(t.b) + p * t.panel_stride;
  const char* ahead = reinterpret_cast<const char*>(b + kAhead * kPanel);
  int64_t ahead_step = kPanel * static_cast<int64_t>(sizeof(float));
  if (t.ahead != nullptr) {
    ahead = t.ahead + p * t.panel_stride * static_cast<int64_t>(sizeof(float));
    ahead_step = t.ahead_step;
  }
  for (int64_t k = 0; k < t.k; k += 2, b += 2 * kPanel, ahead += 2 * ahead_step) {
    __builtin_prefetch(ahead, 0, 3);
    __builtin_prefetch(ahead + ahead_step, 0, 3);
    V x[kPairs];
    RLT_UNROLL for (int i = 0; i < kPairs; ++i) x[i] = words_of(a[2 * i] + k, a[2 * i + 1] + k);
    RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
      const V first = vec(b + v * kLanes), second = vec(b + kPanel + v * kLanes);
      const V low = __builtin_shuffle(first, second, (I){0, 4, 1, 5}),
              high = __builtin_shuffle(first, second, (I){2, 6, 3, 7});
      RLT_UNROLL for (int i = 0; i < kPairs; ++i) {
        M::multiply(sum[i][2 * v], x[i], low);
        M::multiply(sum[i][2 * v + 1], x[i], high);
      }
    }
  }
  RLT_UNROLL for (int i = 0; i < Rows; ++i) {
    RLT_UNROLL for (int j = 0; j < kPanel; ++j) {
      float y = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
      if (t.bias != nullptr) y += t.bias[p * kPanel + j];
      if (t.store == Store::kAdd) y += c[i][j];
      c[i][j] = y;
    }
  }
}

template <class M, int Rows>
void multiply_rows(const Tile& t) {
  for (int64_t p = 0; p < t.panels; ++p) multiply_panel<M, Rows>(t, p);
}

template <class M>
void multiply(const Tile& t) {
  switch (t.rows) {
    case 1:
      return rlt::multiply_rows<Words<M>, 1>(t);
    case 2:
      return multiply_rows<M, 2>(t);
    case 3:
      return multiply_rows<M, 3>(t);
    case 4:
      return multiply_rows<M, 4>(t);
    case 5:
      return multiply_rows<M, 5>(t);
    case 6:
      return multiply_rows<M, 6>(t);
    default:
      refuse_tile(t.rows, kTileRows);
  }
}

}  // namespace mmla
