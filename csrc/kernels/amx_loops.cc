#define RLT_LANES 4
#define RLT_TILES Loops
#include "kernels/set_impl.h"

namespace rlt {
extern const Kernels kernels_amx_loops;
const Kernels kernels_amx_loops = kKernels;
}  // namespace rlt
