#define RLT_LANES 16
#define RLT_TILES Instructions
#include "kernels/set_impl.h"

namespace rlt {
extern const Kernels kernels_amx;
const Kernels kernels_amx = kKernels;
}  // namespace rlt
