#define RLT_LANES 4
#define RLT_MMLA Loops
#include "kernels/set_impl.h"

namespace rlt {
extern const Kernels kernels_neon_loops;
const Kernels kernels_neon_loops = kKernels;
}  // namespace rlt
