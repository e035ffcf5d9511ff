#include "kernels/gemm.h"

#include <emmintrin.h>

#include <algorithm>

#include "kernels/buffer.h"
#include "kernels/tiles.h"

namespace rlt {
namespace {

using Product = void (*)(const Tile&);

// The columns of c that do not fill a panel.
void multiply_last(Product product, Tile t, int64_t columns, const float* b, bool add) {
  float whole[kTileRows][kPanel];
  float* c[kTileRows];
  for (int i = 0; i < t.rows; ++i) {
    c[i] = t.c[i];
    t.c[i] = whole[i];
  }
  t.b = b;
  t.panels = 1;
  t.store = Store::kSet;
  product(t);
  for (int i = 0; i < t.rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i][j] = add ? c[i][j] + whole[i][j] : whole[i][j];
  }
}

void multiply_tiles(Product product, int64_t m, int64_t n, int64_t k, Matrix a, const Panels& b, float* c,
                    int64_t c_stride, bool add) {
  const int64_t whole = n / kPanel, tiles = tiles_of(m);
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
      for (int r = 0; r < t.rows; ++r) {
        t.a[r] = a.data + (row + r) * a.stride;
        t.c[r] = c + (row + r) * c_stride + p * kPanel;
      }
      t.b = b.data + p * b.panel_stride;
      t.panels = std::min(group, whole - p);
      t.store = add ? Store::kAdd : Store::kSet;
      product(t);
      if (p + group <= whole || whole * kPanel == n) continue;
      for (int r = 0; r < t.rows; ++r) t.c[r] += t.panels * kPanel;
      multiply_last(product, t, n - whole * kPanel, b.data + whole * b.panel_stride, add);
    }
  }
}

}  // namespace

int64_t packed_size(int64_t k, int64_t n) { return panels_of(n) * kPanel * k; }

void transpose(int64_t m, int64_t n, Matrix x, float* y, int64_t y_stride) {
  const int64_t m4 = m / 4 * 4, n4 = n / 4 * 4;
  for (int64_t i = 0; i < m4; i += 4) {
    const float* from = x.data + i * x.stride;
    for (int64_t j = 0; j < n4; j += 4) {
      __m128 a = _mm_loadu_ps(from + j), b = _mm_loadu_ps(from + x.stride + j),
             c = _mm_loadu_ps(from + 2 * x.stride + j), d = _mm_loadu_ps(from + 3 * x.stride + j);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      float* to = y + j * y_stride + i;
      _mm_storeu_ps(to, a);
      _mm_storeu_ps(to + y_stride, b);
      _mm_storeu_ps(to + 2 * y_stride, c);
      _mm_storeu_ps(to + 3 * y_stride, d);
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

void round_rows(int64_t m, int64_t k, Matrix a, uint16_t* out) {
  for (int64_t i = 0; i < m; ++i) {
    kernels().round_bf16(a.data + i * a.stride, out, k);
    out += k;
    if (k % 2 != 0) *out++ = 0;
  }
}

namespace {

// pack_pairs of bᵀ whose rows are odd, so that their words are not aligned; no known model has such weights.
void pack_odd_pairs(int64_t k, int64_t n, Matrix16 b, float* out) {
  const int64_t pairs = (k + 1) / 2;
  auto* const halves = reinterpret_cast<uint16_t*>(out);
  std::fill_n(halves, 2 * packed_size(pairs, n), uint16_t{0});
  for (int64_t j = 0; j < n; ++j) {
    uint16_t* const column = halves + j / kPanel * (2 * kPanel * pairs) + j % kPanel * 2;
    for (int64_t i = 0; i < k; ++i) column[i / 2 * 2 * kPanel + i % 2] = b.data[j * b.stride + i];
  }
}

}  // namespace

Panels pack_pairs(char trans, int64_t k, int64_t n, Matrix16 b, float* out) {
  const int64_t pairs = (k + 1) / 2;
  if (trans == 'T' && (k % 2 != 0 || b.stride % 2 != 0)) {
    pack_odd_pairs(k, n, b, out);
    return {out, pairs * kPanel, kPanel};
  }
  if (trans == 'T') {
    return pack('T', pairs, n, {reinterpret_cast<const float*>(b.data), b.stride / 2}, out);
  }
  for (int64_t column = 0; column < n; column += kPanel) {
    auto* panel = reinterpret_cast<__m128i*>(out + column * pairs);
    const int64_t columns = std::min(kPanel, n - column);
    for (int64_t i = 0; i < k; i += 2) {
      const uint16_t *even = b.data + i * b.stride + column, *odd = even + b.stride;
      uint16_t rows[2][kPanel] = {};  // what is not there is zero
      if (columns < kPanel || i + 1 == k) {
        std::copy_n(even, columns, rows[0]);
        if (i + 1 < k) std::copy_n(odd, columns, rows[1]);
        even = rows[0], odd = rows[1];
      }
      for (int64_t j = 0; j < kPanel; j += 8) {
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + j)),
                      high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + j));
        _mm_storeu_si128(panel++, _mm_unpacklo_epi16(low, high));
        _mm_storeu_si128(panel++, _mm_unpackhi_epi16(low, high));
      }
    }
  }
  return {out, pairs * kPanel, kPanel};
}

void multiply_pairs(int64_t m, int64_t n, int64_t k, Matrix16 a, const Panels& b, float* c, int64_t c_stride,
                    bool add) {
  const Matrix words{reinterpret_cast<const float*>(a.data), a.stride / 2};
  multiply_tiles(kernels().multiply_pairs, m, n, (k + 1) / 2, words, b, c, c_stride, add);
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
  panels.reserve(packed_size((k + 1) / 2, n));
  multiply_pairs(m, n, k, a, pack_pairs(trans_b, k, n, b, panels.data()), c, c_stride, add);
}

}  // namespace rlt
