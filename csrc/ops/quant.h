// Frozen weights of few bits (kernels/quant.h) as tensors: uint8 [out, row bytes].
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "kernels/quant_panels.h"
#include "ops/linear.h"

namespace rlt {

// The rows of w [out, in] float32, bfloat16 or float16. Errors: an `in` that the blocks do not divide, a type
// that is only read.
at::Tensor quantize(const at::Tensor& w, int64_t quant);
// The type that products of layers take rows for: bfloat16, or float32 where the processor has no products of
// bfloat16.
inline at::ScalarType quant_type() { return few_are_floats() ? at::kFloat : at::kBFloat16; }
// The weight [out, in] that rows hold, of dtype bfloat16 or float32, or as products of layers take it.
at::Tensor dequantize(const at::Tensor& rows, int64_t quant, int64_t in,
                      std::optional<at::ScalarType> dtype = std::nullopt);

// linear and lora_linear of a quantised weight. Forward and backward dequantise it into memory that is freed
// at once, so a graph keeps only what it keeps of other layers.
at::Tensor quant_linear(const at::Tensor& x, const at::Tensor& rows, Quant quant, const OptionalTensor& bias);
at::Tensor quant_lora_linear(const at::Tensor& x, const at::Tensor& rows, Quant quant,
                             const OptionalTensor& bias, const at::Tensor& a, const at::Tensor& b,
                             double scale, double p, const OptionalTensor& row_keys, int64_t layer);

}  // namespace rlt
