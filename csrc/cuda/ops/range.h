// Scaling of gradients for products in float16.
#pragma once

#include <ATen/core/Tensor.h>

namespace rlt {

// The largest |grad|, or a small number if all are 0; stays on the device. Gradients may be too small for
// float16, so products divide them by it and multiply the result by it.
inline at::Tensor greatest_of(const at::Tensor& grad) { return grad.abs().amax().clamp_min(1e-30); }

}  // namespace rlt
