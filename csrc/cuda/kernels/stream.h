// The stream that libtorch uses on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include "cuda/kernels/kernels.h"

namespace rlt::cuda {

// Null on the CPU.
Stream current_stream(const at::Device& device);

}  // namespace rlt::cuda
