#include <c10/cuda/CUDAStream.h>

#include "cuda/kernels/stream.h"

namespace rlt::cuda {

Stream current_stream(const at::Device& device) {
  return device.is_cuda() ? c10::cuda::getCurrentCUDAStream(device.index()).stream() : nullptr;
}

}  // namespace rlt::cuda
