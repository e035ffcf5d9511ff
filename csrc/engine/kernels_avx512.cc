#define RLT_LANES 16
#include "engine/kernels_impl.h"

namespace rlt::engine {
extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = kKernels;
}  // namespace rlt::engine
