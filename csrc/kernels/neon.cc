#define RLT_LANES 4
#define RLT_NEON
#include "kernels/set_impl.h"

namespace rlt {
extern const Kernels kernels_neon;
const Kernels kernels_neon = kKernels;
}  // namespace rlt
