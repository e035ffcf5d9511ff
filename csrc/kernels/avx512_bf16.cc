#define RLT_LANES 16
#include "kernels/set_impl.h"

namespace rlt {
extern const Kernels kernels_avx512_bf16;
const Kernels kernels_avx512_bf16 = kKernels;
}  // namespace rlt
