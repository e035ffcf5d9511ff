// The instruction sets of arm64. All processors have NEON.
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "kernels/kernels.h"

namespace rlt {

extern const Kernels kernels_amx_loops, kernels_neon_loops, kernels_base, kernels_neon, kernels_neon_bf16;

const InstructionSet* instruction_sets() {
  static const InstructionSet sets[kInstructionSets] = {
      {"amx_loops", &kernels_amx_loops, true, true},
      {"neon_loops", &kernels_neon_loops, true, true},
      {"base", &kernels_base, true, false},
      {"neon", &kernels_neon, true, false},
      {"neon_bf16", &kernels_neon_bf16, (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0, false},
  };
  return sets;
}

}  // namespace rlt
