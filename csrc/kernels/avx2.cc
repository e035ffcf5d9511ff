#define RLT_LANES 8
#include "kernels/set_impl.h"

namespace rlt {
extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = kKernels;
}  // namespace rlt
