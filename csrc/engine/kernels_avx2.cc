#define RLT_LANES 8
#include "engine/kernels_impl.h"

namespace rlt::engine {
extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = kKernels;
}  // namespace rlt::engine
