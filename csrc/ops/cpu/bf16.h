// Products with weights of bfloat16 where the processor has instructions for them: the other side is rounded
// to bfloat16, sums are of float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/gemm.h"
#include "ops/linear.h"

namespace rlt {

// Whether products with w [out, in] round the other side to bfloat16; if not, w is widened.
bool multiplies_bf16(const at::Tensor& w);

// Dense rows of float32 [N, n] as bfloat16, filled up with zeros to whole steps of the products.
at::Tensor rounded_rows(const at::Tensor& x);

// Rows of a dense matrix of bfloat16, from one on.
inline Matrix16 rows_of_bf16(const at::Tensor& w, int64_t row) {
  return {static_cast<const uint16_t*>(w.const_data_ptr()) + row * w.size(1), w.size(1)};
}

// x wᵀ + bias, as rltrain::linear has it.
at::Tensor bf16_linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias);
// grad w
at::Tensor bf16_input_grad(const at::Tensor& grad, const at::Tensor& w);

}  // namespace rlt
