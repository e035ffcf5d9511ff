#include "kernels/kernels.h"

#include <stdexcept>
#include <string>

namespace rlt {

extern const Kernels kernels_base, kernels_avx2, kernels_avx512, kernels_avx512_bf16;

const InstructionSet* instruction_sets() {
  static const InstructionSet sets[kInstructionSets] = {
      {"base", &kernels_base, true},
      {"avx2", &kernels_avx2, __builtin_cpu_supports("x86-64-v3") != 0},
      {"avx512", &kernels_avx512, __builtin_cpu_supports("x86-64-v4") != 0},
      {"avx512_bf16", &kernels_avx512_bf16,
       __builtin_cpu_supports("x86-64-v4") != 0 && __builtin_cpu_supports("avx512bf16") != 0},
  };
  return sets;
}

namespace {

const InstructionSet* widest() {
  int i = kInstructionSets - 1;
  while (!instruction_sets()[i].runs) --i;
  return &instruction_sets()[i];
}

const InstructionSet*& current() {
  static const InstructionSet* set = widest();
  return set;
}

}  // namespace

const Kernels& kernels() { return *current()->kernels; }
const char* kernels_name() { return current()->name; }
void use_kernels(const InstructionSet& set) { current() = &set; }

void refuse_tile(int rows) {
  throw std::logic_error("a tile has 1 to " + std::to_string(kTileRows) + " rows, not " +
                         std::to_string(rows));
}

}  // namespace rlt
