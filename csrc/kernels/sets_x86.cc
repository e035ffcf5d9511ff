// The instruction sets of x86-64.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/kernels.h"

namespace rlt {

extern const Kernels kernels_amx_loops, kernels_neon_loops, kernels_base, kernels_avx2, kernels_avx512,
    kernels_avx512_bf16, kernels_amx;

namespace {

// The kernel lets a process use the registers of tiles once it has asked for them, and all its threads.
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  constexpr unsigned kBF16 = 1U << 22, kTiles = 1U << 24;  // of leaf 7
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBF16) == 0 || (d & kTiles) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const InstructionSet* instruction_sets() {
  static const bool avx512 = __builtin_cpu_supports("x86-64-v4") != 0,
                    bf16 = avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  static const InstructionSet sets[kInstructionSets] = {
      {"amx_loops", &kernels_amx_loops, true, true},
      {"neon_loops", &kernels_neon_loops, true, true},
      {"base", &kernels_base, true, false},
      {"avx2", &kernels_avx2, __builtin_cpu_supports("x86-64-v3") != 0, false},
      {"avx512", &kernels_avx512, avx512, false},
      {"avx512_bf16", &kernels_avx512_bf16, bf16, false},
      {"amx", &kernels_amx, bf16 && may_use_tiles(), false},
  };
  return sets;
}

}  // namespace rlt
