// The kernels of one instruction set. Each <instruction set>.cc defines RLT_LANES, the floats of its vectors,
// and includes this file. Everything here is local to that file, and no other header may be used that defines
// inline functions: the linker keeps one copy of those, perhaps with instructions that the processor at hand
// lacks.
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(RLT_NEON)
#include <arm_neon.h>
#endif

#include <cstdint>

#include "kernels/kernels.h"

namespace rlt {
namespace {

#include "kernels/vector_impl.h"
// What is made of vectors:
#include "kernels/rows_impl.h"
#include "kernels/softmax_impl.h"
#include "kernels/tiles_impl.h"
#if defined(RLT_TILES)
#include "kernels/quant_rows_impl.h"
// Takes weights from there:
#include "kernels/amx_impl.h"
constexpr Product kMultiplyPairs{amx::multiply<amx::RLT_TILES>, amx::kRows};
constexpr FewProduct kMultiplyFew{amx::multiply_few<amx::RLT_TILES>, amx::kHeight, 1};
constexpr FewLayout kFewLayout = FewLayout::kRows;
#elif defined(RLT_MMLA)
#include "kernels/neon_impl.h"
constexpr Product kMultiplyPairs{mmla::multiply<mmla::RLT_MMLA>, kTileRows};
#elif defined(__AVX512BF16__)
constexpr Product kMultiplyPairs{multiply<Pairs>, kTileRows};
#else
constexpr Product kMultiplyPairs{nullptr, 0};
#endif
#if !defined(RLT_TILES)
#include "kernels/quant_impl.h"
constexpr FewLayout kFewLayout = few::kLayout;
#if defined(__AVX2__)
constexpr FewProduct kMultiplyFew{few::multiply<>, few::kMostRowsOfFew, 2};
#else
constexpr FewProduct kMultiplyFew{nullptr, 0, 0};
#endif
#endif

constexpr Kernels kKernels{panels_at_once(kTileRows, 1),
                           {multiply<F32>, kTileRows},
                           {multiply<BF16>, kTileRows},
                           {multiply<F16>, kTileRows},
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
                           logits_backward,
                           few::unpack,
                           kFewLayout,
                           kMultiplyFew};

}  // namespace
}  // namespace rlt
