#include "kernels/kernels.h"

#include <stdexcept>
#include <string>

namespace rlt {

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

void refuse_tile(int rows, int most) {
  throw std::logic_error("a tile has 1 to " + std::to_string(most) + " rows, not " + std::to_string(rows));
}

}  // namespace rlt
