#define RLT_LANES 4
#define RLT_NEON
#define RLT_MMLA Instructions
#include "kernels/set_impl.h"

namespace rlt {
extern const Kernels kernels_neon_bf16;
const Kernels kernels_neon_bf16 = kKernels;
}  // namespace rlt
