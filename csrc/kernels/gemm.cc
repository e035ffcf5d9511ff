#include "kernels/gemm.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/buffer.h"
#include "kernels/tiles.h"

namespace rlt {
namespace {

// The columns of c that do not fill a panel.
void multiply_last(const Product& product, Tile t, int64_t columns, const float* b, bool add) {
  static thread_local Buffer<float> whole;
  whole.reserve(t.rows * kPanel);
  float* const c = t.c;
  const int64_t c_stride = t.c_stride;
  t.c = whole.data();
  t.c_stride = kPanel;
  t.b = b;
  t.panels = 1;
  t.store = Store::kSet;
  product(t);
  for (int i = 0; i < t.rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float& to = c[i * c_stride + j];
      to = add ? to + whole[i * kPanel + j] : whole[i * kPanel + j];
    }
  }
}

void multiply_tiles(const Product& product, int64_t m, int64_t n, int64_t k, Matrix a, const Panels& b,
                    float* c, int64_t c_stride, bool add) {
  const int64_t whole = n / kPanel, tiles = tiles_of(m, product);
  const int64_t group =
      panels_in_cache(k * kPanel * static_cast<int64_t>(sizeof(float)), kernels().panels_at_once);
  for (int64_t p = 0; p < panels_of(n); p += group) {
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = tile_begin(m, tiles, i);
      Tile t;
      t.rows = static_cast<int>(tile_begin(m, tiles, i + 1) - row);
      t.k = k;
      t.panel_stride = b.panel_stride;
      t.k_stride = b.row_stride;
      t.a = a.data + row * a.stride;
      t.a_stride = a.stride;
      t.c = c + row * c_stride + p * kPanel;
      t.c_stride = c_stride;
      t.b = b.data + p * b.panel_stride;
      t.panels = std::min(group, whole - p);
      t.store = add ? Store::kAdd : Store::kSet;
      product(t);
      if (p + group <= whole || whole * kPanel == n) continue;
      t.c += t.panels * kPanel;
      multiply_last(product, t, n - whole * kPanel, b.data + whole * b.panel_stride, add);
    }
  }
}

// Vectors that every processor has.
typedef float Four __attribute__((vector_size(16), aligned(alignof(float)), may_alias));
typedef int32_t Words __attribute__((vector_size(16)));
typedef uint16_t Eight __attribute__((vector_size(16), aligned(alignof(uint16_t)), may_alias));
const Four& four(const float* x) { return *reinterpret_cast<const Four*>(x); }
Four& four(float* x) { return *reinterpret_cast<Four*>(x); }

}  // namespace

int64_t panels_in_cache(int64_t panel_bytes, int64_t multiple) {
  // Where a virtual machine does not tell, what the smallest of today's have.
  static const int64_t cache = std::max<int64_t>(512 << 10, sysconf(_SC_LEVEL2_CACHE_SIZE));
  return panels_in(cache * 3 / 8, panel_bytes, multiple);
}

int64_t packed_size(int64_t k, int64_t n) { return panels_of(n) * kPanel * k; }

void transpose(int64_t m, int64_t n, Matrix x, float* y, int64_t y_stride) {
  const int64_t m4 = m / 4 * 4, n4 = n / 4 * 4;
  for (int64_t i = 0; i < m4; i += 4) {
    const float* from = x.data + i * x.stride;
    for (int64_t j = 0; j < n4; j += 4) {
      const Four a = four(from + j), b = four(from + x.stride + j), c = four(from + 2 * x.stride + j),
                 d = four(from + 3 * x.stride + j);
      constexpr Words kLow = {0, 4, 1, 5}, kHigh = {2, 6, 3, 7}, kFirst = {0, 1, 4, 5}, kLast = {2, 3, 6, 7};
      const Four ab = __builtin_shuffle(a, b, kLow), cd = __builtin_shuffle(c, d, kLow),
                 ab_high = __builtin_shuffle(a, b, kHigh), cd_high = __builtin_shuffle(c, d, kHigh);
      float* to = y + j * y_stride + i;
      four(to) = __builtin_shuffle(ab, cd, kFirst);
      four(to + y_stride) = __builtin_shuffle(ab, cd, kLast);
      four(to + 2 * y_stride) = __builtin_shuffle(ab_high, cd_high, kFirst);
      four(to + 3 * y_stride) = __builtin_shuffle(ab_high, cd_high, kLast);
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = i < m4 ? n4 : 0; j < n; ++j) y[j * y_stride + i] = x.data[i * x.stride + j];
  }
}

Panels pack(char trans, int64_t k, int64_t n, Matrix b, float* out, float scale) {
  for (int64_t column = 0; column < n; column += kPanel) {
    const int64_t columns = std::min(kPanel, n - column);
    float* panel = out + column * k;
    if (columns < kPanel) std::fill_n(panel, k * kPanel, 0.0f);
    if (trans == 'T') {
      transpose(columns, k, {b.data + column * b.stride, b.stride}, panel, kPanel);
    } else {
      for (int64_t i = 0; i < k; ++i)
        std::copy_n(b.data + i * b.stride + column, columns, panel + i * kPanel);
    }
  }
  if (scale != 1) kernels().scale(out, scale, out, packed_size(k, n));
  return {out, k * kPanel, kPanel};
}

void multiply(int64_t m, int64_t n, int64_t k, Matrix a, const Panels& b, float* c, int64_t c_stride,
              bool add) {
  multiply_tiles(kernels().multiply_f32, m, n, k, a, b, c, c_stride, add);
}

namespace {

// Rows i and i + 1 of b's columns, side by side in words; what is not there is zero.
Eight* interleave(Matrix16 b, int64_t i, int64_t k, int64_t column, int64_t columns, Eight* to) {
  const uint16_t *even = b.data + i * b.stride + column, *odd = even + b.stride;
  uint16_t rows[2][kPanel] = {};
  if (columns < kPanel || i + 1 == k) {
    std::copy_n(even, columns, rows[0]);
    if (i + 1 < k) std::copy_n(odd, columns, rows[1]);
    even = rows[0], odd = rows[1];
  }
  for (int64_t j = 0; j < kPanel; j += 8) {
    const Eight low = *reinterpret_cast<const Eight*>(even + j),
                high = *reinterpret_cast<const Eight*>(odd + j);
    *to++ = __builtin_shuffle(low, high, (Eight){0, 8, 1, 9, 2, 10, 3, 11});
    *to++ = __builtin_shuffle(low, high, (Eight){4, 12, 5, 13, 6, 14, 7, 15});
  }
  return to;
}

// Rows of k as the columns of a panel of words.
void pack_rows(int64_t columns, int64_t k, const uint16_t* rows, int64_t stride, float* panel) {
  const int64_t pairs = (k + 1) / 2;
  if (columns < kPanel || k % 2 != 0) std::fill_n(panel, pairs * kPanel, 0.0f);
  if (k % 2 == 0 && stride % 2 == 0) {
    return transpose(columns, pairs, {reinterpret_cast<const float*>(rows), stride / 2}, panel, kPanel);
  }
  auto* const halves = reinterpret_cast<uint16_t*>(panel);
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < k; ++i) halves[i / 2 * 2 * kPanel + 2 * j + i % 2] = rows[j * stride + i];
  }
}

}  // namespace

void round_rows(int64_t m, int64_t k, Matrix a, uint16_t* out) {
  for (int64_t i = 0; i < m; ++i) {
    kernels().round_bf16(a.data + i * a.stride, out, k);
    std::fill_n(out + k, 2 * words_of(k) - k, uint16_t{0});
    out += 2 * words_of(k);
  }
}

void round_in_place(float* x, int64_t n) {
  uint16_t halves[256];
  for (int64_t i = 0; i < n; i += 256) {
    const int64_t count = std::min<int64_t>(256, n - i);
    kernels().round_bf16(x + i, halves, count);
    kernels().widen_bf16(halves, x + i, count);
  }
}

Panels pack_pairs(char trans, int64_t k, int64_t n, Matrix16 b, float* out) {
  const int64_t words = words_of(k);
  for (int64_t column = 0; column < n; column += kPanel) {
    float* const panel = out + column * words;
    const int64_t columns = std::min(kPanel, n - column), pairs = (k + 1) / 2;
    if (trans == 'T') {
      pack_rows(columns, k, b.data + column * b.stride, b.stride, panel);
    } else {
      auto* to = reinterpret_cast<Eight*>(panel);
      for (int64_t i = 0; i < k; i += 2) to = interleave(b, i, k, column, columns, to);
    }
    std::fill_n(panel + pairs * kPanel, (words - pairs) * kPanel, 0.0f);
  }
  return {out, words * kPanel, kPanel};
}

void multiply_pairs(int64_t m, int64_t n, int64_t k, Matrix16 a, const Panels& b, float* c, int64_t c_stride,
                    bool add) {
  const Matrix words{reinterpret_cast<const float*>(a.data), a.stride / 2};
  multiply_tiles(kernels().multiply_pairs, m, n, words_of(k), words, b, c, c_stride, add);
}

Matrix16 rounded(int64_t rows, int64_t n, Matrix x) {
  static thread_local Buffer<uint16_t> memory;
  const int64_t stride = 2 * words_of(n);
  memory.reserve(rows * stride);
  round_rows(rows, n, x, memory.data());
  return {memory.data(), stride};
}

void multiply_as(bool pairs, int64_t m, int64_t n, int64_t k, Matrix a, const Panels& b, float* c,
                 int64_t c_stride, bool add) {
  if (!pairs) return multiply(m, n, k, a, b, c, c_stride, add);
  multiply_pairs(m, n, k, rounded(m, k, a), b, c, c_stride, add);
}

void gemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, float* c,
          int64_t c_stride, bool add) {
  static thread_local Buffer<float> rows, panels;
  if (trans_a == 'T') {
    rows.reserve(m * k);
    transpose(k, m, a, rows.data(), k);
    a = {rows.data(), k};
  }
  panels.reserve(packed_size(k, n));
  multiply(m, n, k, a, pack(trans_b, k, n, b, panels.data()), c, c_stride, add);
}

void gemm_pairs(char trans_b, int64_t m, int64_t n, int64_t k, Matrix16 a, Matrix16 b, float* c,
                int64_t c_stride, bool add) {
  static thread_local Buffer<float> panels;
  panels.reserve(packed_size(words_of(k), n));
  multiply_pairs(m, n, k, a, pack_pairs(trans_b, k, n, b, panels.data()), c, c_stride, add);
}

}  // namespace rlt
