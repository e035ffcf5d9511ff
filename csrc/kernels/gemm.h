// Products of row-major float32 matrices on the calling thread, by the tile kernels. Each element is
// summed in an order of its own, which neither the elements beside it nor where a matrix lies in memory
// change.
#pragma once

#include <cstdint>

namespace rlt {

struct Matrix {
  const float* data;
  int64_t stride;
};

// A matrix [k, n] as panels of 16 columns: row i of panel p begins at data + p·panel_stride + i·row_stride.
struct Panels {
  const float* data;
  int64_t panel_stride, row_stride;
};

// Floats that pack writes.
int64_t packed_size(int64_t k, int64_t n);
// op(b) [k, n] times scale as dense panels at out, the last filled up with zeros; an upper-case T transposes.
Panels pack(char trans, int64_t k, int64_t n, Matrix b, float* out, float scale = 1);
// b [k, n] where it is; n must be a multiple of 16.
inline Panels in_place(Matrix b) { return {b.data, 16, b.stride}; }

// c [m, n] = a [m, k] b, or c += with add.
void multiply(int64_t m, int64_t n, int64_t k, Matrix a, const Panels& b, float* c, int64_t c_stride,
              bool add = false);

// Products of bfloat16 with sums of float32, where kernels() has multiply_pairs: the same with words of two
// values each that follow each other in k.
struct Matrix16 {
  const uint16_t* data;
  int64_t stride;
};
// Rows [m, k] of a, rounded and contiguous, each padded with zeros to words_of(k) words.
void round_rows(int64_t m, int64_t k, Matrix a, uint16_t* out);
// x rounded to bfloat16.
void round_in_place(float* x, int64_t n);
// op(b) [k, n] as panels of words [words_of(k)][16], filled up with zeros; packed_size(words_of(k), n)
// floats.
Panels pack_pairs(char trans, int64_t k, int64_t n, Matrix16 b, float* out);
// c [m, n] = a [m, k] b, or c += with add; a's rows are filled up with zeros to words_of(k) words.
void multiply_pairs(int64_t m, int64_t n, int64_t k, Matrix16 a, const Panels& b, float* c, int64_t c_stride,
                    bool add = false);

// x [rows, n] rounded, in memory of the calling thread until its next call.
Matrix16 rounded(int64_t rows, int64_t n, Matrix x);
// c [m, n] = a [m, k] b, or c += with add, where with `pairs` a is rounded and b are panels of words.
void multiply_as(bool pairs, int64_t m, int64_t n, int64_t k, Matrix a, const Panels& b, float* c,
                 int64_t c_stride, bool add = false);

// c [m, n] = op(a) op(b), or c += with add.
void gemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, float* c,
          int64_t c_stride, bool add = false);
// c [m, n] = a [m, k] op(b), or c += with add; a as in multiply_pairs.
void gemm_pairs(char trans_b, int64_t m, int64_t n, int64_t k, Matrix16 a, Matrix16 b, float* c,
                int64_t c_stride, bool add = false);

// y [n, m] = xᵀ for x [m, n]
void transpose(int64_t m, int64_t n, Matrix x, float* y, int64_t y_stride);

}  // namespace rlt
