#define RLT_LANES 4
#include "kernels/set_impl.h"

namespace rlt {
extern const Kernels kernels_base;
const Kernels kernels_base = kKernels;
}  // namespace rlt
