// Products of bfloat16 in the tile registers of AMX, eight of 16 rows of 64 bytes; part of set_impl.h, inside
// its namespace. They are written for registers in general: the processor's, or loops that do what its
// instructions are defined to do, to the bit, so that a machine without them tests the rest.

namespace amx {

constexpr int kHeight = 16;         // rows of a register
constexpr int kRows = 2 * kHeight;  // of a tile of the product

// The size of each register.
struct Layout {
  uint16_t bytes[8];  // of a row
  uint8_t rows[8];
};

// Whoever else multiplies on this thread lays the registers out for himself, as oneDNN does, so they are laid
// out anew for each tile of the product and released after it: some 50 ns.
class Instructions {
 public:
  explicit Instructions(const Layout& layout) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } all;
    for (int t = 0; t < 8; ++t) all.bytes[t] = layout.bytes[t], all.rows[t] = layout.rows[t];
    asm volatile("ldtilecfg %0" ::"m"(all));
  }
  ~Instructions() { asm volatile("tilerelease"); }

  template <int T>
  RLT_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  // The rows lie a stride of words apart.
  template <int T>
  RLT_INLINE void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(4 * stride) : "memory");
  }
  template <int T>
  RLT_INLINE void store(float* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(4 * stride) : "memory");
  }
  // Sums += A·B
  template <int Sums, int A, int B>
  RLT_INLINE void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }
};

// Subnormal numbers are 0, as operands and as results.
RLT_INLINE float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }
RLT_INLINE float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
RLT_INLINE float low_half(uint32_t word) { return flush(float_of(word << 16)); }
RLT_INLINE float high_half(uint32_t word) { return flush(float_of(word & 0xffff0000U)); }

class Loops {
 public:
  explicit Loops(const Layout& layout) : layout_(layout) {}

  template <int T>
  void zero() {
    __builtin_memset(registers_[T], 0, sizeof registers_[T]);
  }
  template <int T>
  void load(const void* from, int64_t stride) {
    for (int i = 0; i < layout_.rows[T]; ++i) {
      __builtin_memcpy(registers_[T][i], static_cast<const uint32_t*>(from) + i * stride, layout_.bytes[T]);
    }
  }
  template <int T>
  void store(float* to, int64_t stride) {
    for (int i = 0; i < layout_.rows[T]; ++i) {
      __builtin_memcpy(to + i * stride, registers_[T][i], layout_.bytes[T]);
    }
  }
  // Intel's definition of tdpbf16ps: even and odd elements are summed apart, from 0 and by fused
  // multiply-adds, then together, then to what was there.
  template <int Sums, int A, int B>
  void multiply() {
    for (int i = 0; i < layout_.rows[A]; ++i) {
      for (int j = 0; j < layout_.bytes[B] / 4; ++j) {
        float even = 0, odd = 0;
        for (int k = 0; k < 16; ++k) {
          const uint32_t a = registers_[A][i][k], b = registers_[B][k][j];
          even = flush(__builtin_fmaf(low_half(a), low_half(b), even));
          odd = flush(__builtin_fmaf(high_half(a), high_half(b), odd));
        }
        const float sum = flush(flush(float_of(registers_[Sums][i][j])) + flush(even + odd));
        __builtin_memcpy(&registers_[Sums][i][j], &sum, sizeof sum);
      }
    }
  }

 private:
  Layout layout_;
  uint32_t registers_[8][kHeight][16];
};

// Registers 0 to 3 are sums; 4 and 5 rows of a, 6 and 7 panels of b. With one register of rows, 0 to 3 are as
// high as that; with two, 0, 1 and 4 are as high as the first, and 2, 3 and 5 as the second.
struct Heights {
  int first, second;  // second: 0 with one register of rows
  int of(int t) const {
    return t >= 6 ? kHeight : (second > 0 && (t == 2 || t == 3 || t == 5)) ? second : first;
  }
};

// A number that a function's body can use as a constant.
template <int T>
struct Number {
  static constexpr int value = T;
};

// Calls f(number of the register, which register of rows, which panel) for the sums of a block.
template <int High, int Panels, class F>
RLT_INLINE void for_sums(const F& f) {
  static_assert(High * Panels <= 4, "there are four sums");
  f(Number<0>(), 0, 0);
  if (High == 2) f(Number<2>(), 1, 0);
  if (Panels > 1) f(Number<1>(), 0, 1);
  if (Panels > 1 && High == 2) f(Number<3>(), 1, 1);
  if (Panels > 2) f(Number<2>(), 0, 2);
  if (Panels > 2) f(Number<3>(), 0, 3);
}

// Sums of 32 products each: one step of k.
template <int High, int Panels, class Registers>
RLT_INLINE void multiply_step(Registers& r, const float* const (&a)[2], int64_t a_stride, const uint32_t* b,
                              int64_t panel_stride) {
  r.template load<4>(a[0], a_stride);
  r.template load<6>(b, kPanel);
  r.template multiply<0, 4, 6>();
  if (High == 2) {
    r.template load<5>(a[1], a_stride);
    r.template multiply<2, 5, 6>();
  }
  if (Panels > 1) {
    r.template load<7>(b + panel_stride, kPanel);
    r.template multiply<1, 4, 7>();
    if (High == 2) r.template multiply<3, 5, 7>();
  }
  if (Panels > 2) {
    r.template load<6>(b + 2 * panel_stride, kPanel);
    r.template multiply<2, 4, 6>();
    r.template load<7>(b + 3 * panel_stride, kPanel);
    r.template multiply<3, 4, 7>();
  }
}

// c = sums, with what the tile adds; c and rows are those of one register, and bias may be null.
template <int T, class Registers>
RLT_INLINE void put(Registers& r, Store how, int rows, const float* bias, float* c, int64_t c_stride) {
  if (bias == nullptr && how != Store::kAdd) return r.template store<T>(c, c_stride);
  alignas(64) float sums[kHeight * kPanel];
  r.template store<T>(sums, kPanel);
  for (int i = 0; i < rows; ++i, c += c_stride) {
    RLT_UNROLL for (int64_t j = 0; j < kPanel; j += kLanes) {
      V y = vec(sums + i * kPanel + j);
      if (bias != nullptr) y += vec(bias + j);
      if (how == Store::kAdd) y += vec(c + j);
      vec(c + j) = y;
    }
  }
}

RLT_INLINE void fetch(const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 3);
}

// Panels [p, p + Panels) of t.
template <int High, int Panels, class Registers>
RLT_INLINE void multiply_panels(Registers& r, const Tile& t, const Heights& heights, int64_t p) {
  constexpr int64_t kStep = kStepWords * kPanel, kBytes = 4 * kStep;  // of a panel: words, bytes
  constexpr int64_t kAhead = 4;                                       // steps
  const int rows[2] = {heights.first, heights.second};
  const float* a[2] = {t.a, t.a + heights.first * t.a_stride};
  const auto c_of = [&](int high, int panel) {
    return t.c + high * heights.first * t.c_stride + (p + panel) * kPanel;
  };
  for_sums<High, Panels>([&](auto number, int high, int panel) __attribute__((always_inline)) {
    constexpr int kSum = decltype(number)::value;
    if (t.store == Store::kContinue) {
      r.template load<kSum>(c_of(high, panel), t.c_stride);
    } else {
      r.template zero<kSum>();
    }
  });
  const auto* b = static_cast<const uint32_t*>(t.b) + p * t.panel_stride;
  const char* ahead = t.ahead == nullptr ? nullptr : t.ahead + 4 * p * t.panel_stride;
  for (int64_t k = 0; k < t.k; k += kStepWords, b += kStep) {
    multiply_step<High, Panels>(r, a, t.a_stride, b, t.panel_stride);
    a[0] += kStepWords;
    a[1] += kStepWords;
    for (int64_t i = 0; i < Panels; ++i) {
      if (ahead != nullptr) {
        fetch(ahead + 4 * i * t.panel_stride, kStepWords * t.ahead_step);
      } else {
        // The next panels begin where these end.
        const int64_t on = k + kAhead * kStepWords < t.k ? 0 : (Panels - 1) * t.panel_stride;
        fetch(reinterpret_cast<const char*>(b + i * t.panel_stride + on) + kAhead * kBytes, kBytes);
      }
    }
    if (ahead != nullptr) ahead += kStepWords * t.ahead_step;
  }
  for_sums<High, Panels>([&](auto number, int high, int panel) __attribute__((always_inline)) {
    put<decltype(number)::value>(r, t.store, rows[high],
                                 t.bias == nullptr ? nullptr : t.bias + (p + panel) * kPanel,
                                 c_of(high, panel), t.c_stride);
  });
}

template <class Registers>
void multiply(const Tile& t) {
  if (t.rows < 1 || t.rows > kRows) refuse_tile(t.rows, kRows);
  const Heights heights{t.rows < kHeight ? t.rows : kHeight, t.rows > kHeight ? t.rows - kHeight : 0};
  Layout layout;
  for (int i = 0; i < 8; ++i) {
    layout.bytes[i] = 64;
    layout.rows[i] = static_cast<uint8_t>(heights.of(i));
  }
  Registers r(layout);
  int64_t p = 0;
  if (heights.second > 0) {
    for (; p + 2 <= t.panels; p += 2) multiply_panels<2, 2>(r, t, heights, p);
    if (p < t.panels) multiply_panels<2, 1>(r, t, heights, p);
    return;
  }
  for (; p + 4 <= t.panels; p += 4) multiply_panels<1, 4>(r, t, heights, p);
  for (; p < t.panels; ++p) multiply_panels<1, 1>(r, t, heights, p);
}

// ---- weights of few bits ----
// They are unpacked to rows of outputs, which are an A of the instruction as they are: it sums the same
// products in the same order with a and b exchanged. B is a turned, and the sums are [outputs][rows].

constexpr int kFewPanels = 4;

template <int T, class Registers>
RLT_INLINE void put_turned(Registers& r, const Tile& t, int64_t panel) {
  alignas(64) float sums[kPanel * kHeight], turned[kPanel];
  const int64_t width = t.rows;
  r.template store<T>(sums, width);
  for (int i = 0; i < t.rows; ++i) {
    float *row = sums, *const c = t.c + i * t.c_stride + panel * kPanel;
    if (width > 1) {
      for (int64_t j = 0; j < kPanel; ++j) turned[j] = sums[j * width + i];
      row = turned;
    }
    RLT_UNROLL for (int64_t j = 0; j < kPanel; j += kLanes) {
      V y = vec(row + j);
      if (t.bias != nullptr) y += vec(t.bias + panel * kPanel + j);
      if (t.store == Store::kAdd) y += vec(c + j);
      vec(c + j) = y;
    }
  }
}

template <int Panels, class Registers>
RLT_INLINE void multiply_few_panels(Registers& r, const Tile& t, const FewPanel* panels) {
  constexpr int64_t kStep = 128, kPanelWords = kPanel * kStep / 2;  // k at once
  alignas(64) uint32_t rows[2][kPanelWords];
  const uint8_t* blocks[Panels];
  for (int p = 0; p < Panels; ++p) blocks[p] = panels[p].blocks;
  for_sums<1, Panels>([&](auto number, int, int)
                          __attribute__((always_inline)) { r.template zero<decltype(number)::value>(); });
  const auto words_at = [&](int64_t k) { return t.k - k < kStep / 2 ? t.k - k : kStep / 2; };
  const auto multiply_rows = [&](auto number, int64_t k, const uint32_t* from)
      __attribute__((always_inline)) {
    for (int64_t i = 0; i < words_at(k); i += kStepWords) {
      r.template load<6>(t.a + (k + i) * t.a_stride, t.a_stride);
      r.template load<4>(from + i, kStep / 2);
      r.template multiply<decltype(number)::value, 4, 6>();
    }
  };
  // Rows are multiplied after the next ones are unpacked: only then are they in the cache, where a register
  // can load them, and the processor multiplies and unpacks at the same time.
  int now = 0;
  for (int64_t k = 0; k < t.k; k += kStep / 2) {
    for_sums<1, Panels>([&](auto number, int, int panel) __attribute__((always_inline)) {
      now ^= 1;
      blocks[panel] = few::unpack(*panels[panel].by, blocks[panel], 2 * words_at(k), panels[panel].ahead,
                                  reinterpret_cast<uint16_t*>(rows[now]), kStep);
      constexpr int kBefore = (decltype(number)::value + Panels - 1) % Panels;
      const int64_t before = panel > 0 ? k : k - kStep / 2;
      if (before >= 0) multiply_rows(Number<kBefore>(), before, rows[now ^ 1]);
    });
  }
  multiply_rows(Number<Panels - 1>(), (t.k - 1) / (kStep / 2) * (kStep / 2), rows[now]);
  for_sums<1, Panels>([&](auto number, int, int panel) __attribute__((always_inline)) {
    put_turned<decltype(number)::value>(r, t, panel);
  });
}

template <class Registers>
void multiply_few(const Tile& t, const FewPanel* panels) {
  if (t.rows < 1 || t.rows > kHeight) refuse_tile(t.rows, kHeight);
  Layout layout;
  for (int i = 0; i < 8; ++i) {
    layout.rows[i] = kHeight;
    layout.bytes[i] = i == 4 ? 64 : static_cast<uint16_t>(4 * t.rows);
  }
  Registers r(layout);
  if (t.panels == kFewPanels) return multiply_few_panels<kFewPanels>(r, t, panels);
  for (int64_t p = 0; p < t.panels; ++p) {
    Tile one = t;
    one.panels = 1;
    one.c += p * kPanel;
    if (t.bias != nullptr) one.bias += p * kPanel;
    multiply_few_panels<1>(r, one, panels + p);
  }
}

}  // namespace amx
