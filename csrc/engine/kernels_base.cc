#define RLT_LANES 4
#include "engine/kernels_impl.h"

namespace rlt::engine {
extern const Kernels kernels_base;
const Kernels kernels_base = kKernels;
}  // namespace rlt::engine
