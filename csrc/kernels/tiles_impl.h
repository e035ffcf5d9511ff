// Products of tiles; part of set_impl.h, inside its namespace.

// Rows of a tile: six by sixteen floats fill the registers of AVX2.
constexpr int kTileRows = 6;

// How many panels a tile of so many rows takes at once: enough sums that are independent of each other to
// hide the latency of the multiply-add, few enough to stay in registers with the weights being widened.
constexpr int panels_at_once(int rows, int step) {
  if (kLanes == 16) return rows == 1 ? 8 : 4;
  return rows == 1 ? 4 : rows + step <= 4 ? 2 : 1;
}

// One row of k for all of a tile. Few rows are kept in registers while panels stream by; many rows are
// streamed past the panels.
template <class W, int Rows, int Panels, int S>
RLT_INLINE void multiply_row(const float* const* a, int64_t k, const typename W::Element* b,
                             int64_t panel_stride, V (&sum)[Rows][Panels * kVectors]) {
  if (Rows < 4) {
    V x[Rows];
    RLT_UNROLL for (int i = 0; i < Rows; ++i) x[i] = W::spread(a[i] + k + S);
    RLT_UNROLL for (int p = 0; p < Panels; ++p) {
      RLT_UNROLL for (int v = 0; v < kVectors; ++v) {
        const V w = W::template row<S>(b + p * panel_stride, v);
        RLT_UNROLL for (int i = 0; i < Rows; ++i) W::add_product(sum[i][p * kVectors + v], x[i], w);
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
    const V x = W::spread(a[i] + k + S);
    RLT_UNROLL for (int j = 0; j < Panels * kVectors; ++j) W::add_product(sum[i][j], x, w[j]);
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
    a[i] = t.a + i * t.a_stride;
    RLT_UNROLL for (int j = 0; j < Panels * kVectors; ++j) {
      sum[i][j] = t.store == Store::kContinue ? vec(t.c + i * t.c_stride + first * kPanel + j * kLanes) : V{};
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
      __builtin_prefetch(b + p * panel_stride + (kAhead + i) * step, 0, 3);
    }
  };
  if (t.ahead != nullptr) {
    const int64_t half = kUnrolled / 2 * t.ahead_step;
    const auto panel_bytes = panel_stride * static_cast<int64_t>(sizeof(Element));
    const char* ahead = t.ahead + first * panel_bytes;
    for (; k + kUnrolled <= t.k; k += kUnrolled, b += 4 * kDense, ahead += 2 * half) {
      RLT_UNROLL for (int p = 0; p < Panels; ++p) {
        __builtin_prefetch(ahead + p * panel_bytes, 0, 3);
        __builtin_prefetch(ahead + p * panel_bytes + half, 0, 3);
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
    float* c = t.c + i * t.c_stride + first * kPanel;
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
      refuse_tile(t.rows, kTileRows);
  }
}
