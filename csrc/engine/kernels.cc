#include "engine/kernels.h"

#include <stdexcept>
#include <string>

namespace rlt::engine {

extern const Kernels kernels_base, kernels_avx2, kernels_avx512;

const Kernels& kernels() {
  static const Kernels& best = __builtin_cpu_supports("x86-64-v4")   ? kernels_avx512
                               : __builtin_cpu_supports("x86-64-v3") ? kernels_avx2
                                                                     : kernels_base;
  return best;
}

void refuse_tile(int rows) {
  throw std::logic_error("a tile has 1 to " + std::to_string(kTileRows) + " rows, not " +
                         std::to_string(rows));
}

}  // namespace rlt::engine
