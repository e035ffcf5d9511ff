// The kernels of one instruction set. Each <instruction set>.cc defines RLT_LANES, the floats of its vectors,
// and includes this file. Everything here is local to that file, and no other header may be used that defines
// inline functions: the linker keeps one copy of those, perhaps with instructions that the processor at hand
// lacks.
#include <immintrin.h>

#include <cstdint>

#include "kernels/kernels.h"

namespace rlt {
namespace {

#include "kernels/vector_impl.h"
// What is made of vectors:
#include "kernels/rows_impl.h"
#include "kernels/softmax_impl.h"
#include "kernels/tiles_impl.h"

constexpr Kernels kKernels{panels_at_once(kTileRows, 1),
                           multiply<F32>,
                           multiply<BF16>,
                           multiply<F16>,
                           kMultiplyPairs,
                           round_bf16,
                           widen_bf16,
                           widen_f16,
                           scale,
                           add_scaled,
                           dot,
                           peak,
                           at_least,
                           rms_norm,
                           rms_norm_backward,
                           layer_norm,
                           layer_norm_backward,
                           rotate,
                           activate,
                           gate,
                           gate_backward,
                           gate_panels,
                           dropout,
                           softcap,
                           softcap_backward,
                           softmax,
                           exp_row,
                           softmax_backward,
                           sum_exp,
                           exp_blocks,
                           moments,
                           logits_backward};

}  // namespace
}  // namespace rlt
