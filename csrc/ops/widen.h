// Stored weights of two bytes an element as floats.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace rlt {

// Refuses a weight that is not dense, or not float32, bfloat16 or float16.
void check_weight(const char* op, const at::Tensor& w);

// Rows [first, first + count) of w as dense floats: in place where w is float32, else converted into
// scratch, on the calling thread.
const float* float_rows(const at::Tensor& w, int64_t first, int64_t count, float* scratch);

}  // namespace rlt
