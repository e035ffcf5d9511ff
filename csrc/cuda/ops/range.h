// The range of gradients that are computed with in float16.
#pragma once

#include <ATen/core/Tensor.h>

namespace rlt {

// The greatest of |grad|, or a small number where all are 0; on the device, not waited for. Float16 does not
// hold numbers as small as gradients may be: they are divided by it, and what becomes of them is multiplied
// by it.
inline at::Tensor greatest_of(const at::Tensor& grad) { return grad.abs().amax().clamp_min(1e-30); }

}  // namespace rlt
