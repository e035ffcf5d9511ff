// The inner loops of the engine and of products that are too small or too thin for a BLAS, compiled for each
// instruction set and chosen when the library is loaded.
//
// Each output is reduced in an order of its own that neither the rows beside it nor the number of threads
// change: that is what makes a completion the same bits in any batch.
#pragma once

#include <cstdint>

namespace rlt::engine {

// Columns of a panel. A matrix B [k, n] is held as panels of 16 columns, each [k][16]; an n that does not
// divide is filled up with zeros.
constexpr int64_t kPanel = 16;
// Rows of a tile: six by sixteen floats fill the registers of AVX2.
constexpr int kTileRows = 6;

enum class Store {
  kSet,       // c = a·b + bias
  kAdd,       // c = c + (a·b + bias)
  kContinue,  // c is where the sum over k starts
};

// A few rows times some panels: c[i][0, 16·panels) from a[i][0, k).
struct Tile {
  int rows = 0;  // 1 to kTileRows
  const float* a[kTileRows];
  float* c[kTileRows];
  const void* b = nullptr;
  int64_t k = 0, panels = 0;
  int64_t panel_stride = 0;     // elements from a panel to the next
  int64_t k_stride = kPanel;    // from a row of a panel to the next; F32 only
  const float* bias = nullptr;  // [16·panels] or null
  // Memory to bring into the caches meanwhile: for each panel ahead_step bytes a row of k, at most two cache
  // lines every four rows of F32 or F16 and every eight of BF16, from ahead on for the first and as far
  // behind each other as the panels are; k_stride is kPanel then. Null: what comes next in b.
  const char* ahead = nullptr;
  int64_t ahead_step = 0;
  Store store = Store::kSet;
};

struct Kernels {
  // Panels that a tile of more than one row takes at once, at most.
  int64_t panels_at_once;
  void (*multiply_f32)(const Tile&);
  // Rows 2i and 2i + 1 of a panel share 16 words: the even row is their low halves.
  void (*multiply_bf16)(const Tile&);
  void (*multiply_f16)(const Tile&);

  // y = x · rsqrt(mean(x²) + eps) · weight
  void (*rms_norm)(const float* x, const float* weight, float* y, int64_t n, float eps);
  // y = (x - mean) · rsqrt(variance + eps) · weight + bias
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float* y, int64_t n, float eps);
  // Rotates the pairs (x[j], x[j + n]), j < n, in place.
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);
  // y += x
  void (*add)(const float* x, float* y, int64_t n);
  // x = activation(x); activation as in rltrain.h.
  void (*activate)(float* x, int64_t n, int32_t activation);
  // y [rows, 16·pairs] = activation(gate) · up from rows of 2·pairs panels, alternately gate and up.
  void (*gate)(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows, int64_t pairs,
               int32_t activation);
  // x = cap · tanh(x / cap)
  void (*softcap)(float* x, int64_t n, float cap);
  // x = exp(x - max x); returns the sum.
  float (*softmax)(float* x, int64_t n);

  // The largest of n > 0 values.
  float (*peak)(const float* x, int64_t n);
  // Σ exp(x - peak)
  double (*sum_exp)(const float* x, int64_t n, float peak);
  // y = exp((x - peak) · factor); sums [⌈n / kSumBlock⌉] are those of its blocks. Returns the sum of all.
  double (*exp_blocks)(const float* x, int64_t n, float peak, float factor, float* y, double* sums);
  // The indices, in order, of values that are at least bound; ids has room for n. Returns how many.
  int64_t (*at_least)(const float* x, int64_t n, float bound, int32_t* ids);
};

constexpr int64_t kSumBlock = 256;

// Those for this processor.
const Kernels& kernels();

// What the products do with a tile that has less than one row or more than kTileRows: throws
// std::logic_error.
[[noreturn]] void refuse_tile(int rows);

}  // namespace rlt::engine
