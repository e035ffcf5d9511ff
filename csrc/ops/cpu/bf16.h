// Products with weights of bfloat16 on processors with instructions for them: the other side is rounded to
// bfloat16, sums are float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/gemm.h"
#include "kernels/group.h"
#include "ops/linear.h"

namespace rlt {

// Whether products with w [out, in] round the other side to bfloat16; if not, w is widened.
bool multiplies_bf16(const at::Tensor& w);

// Memory for rows of n elements as bfloat16, filled up with zeros to whole steps of the products.
at::Tensor empty_rounded(int64_t rows, int64_t n);
// Rounds count rows x of n elements to rows [row, row + count) of such memory, on the calling thread.
void round_rows_into(const at::Tensor& rounded, int64_t row, int64_t count, const Matrix& x, int64_t n);
// Dense float32 rows [N, n] as bfloat16, by all threads.
at::Tensor rounded_rows(const at::Tensor& x);

// Rows of a dense matrix of bfloat16, from one on.
inline Matrix16 rows_of_bf16(const at::Tensor& w, int64_t row) {
  return {static_cast<const uint16_t*>(w.const_data_ptr()) + row * w.size(1), w.size(1)};
}

// What an adapter adds to the n columns of a product: columns [column, column + rank) of u times scale ·
// op(b) [rank, n].
struct Epilogue {
  Buffer<float> b;
  std::vector<LowRank::Share> shares;
  LowRank low;

  Epilogue(char trans, int64_t column, int64_t rank, int64_t n, Matrix b, float scale);
};

// Each row's u, and what becomes of it; no adapter where u is null.
struct AdapterRows {
  const float* u = nullptr;
  int64_t stride = 0;
  const Epilogue* epilogue = nullptr;
};
// x op(w) + bias + what the adapter adds, [N, n] float32, for rounded rows x: op(w) is w transposed where
// trans is 'T'. Adds to sum and returns it where it is defined.
at::Tensor bf16_product(char trans, const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias,
                        const AdapterRows& adapter, at::Tensor sum);

}  // namespace rlt
