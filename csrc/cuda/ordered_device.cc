// Whoever opens the library gets libtorch's kernels that add in a fixed order, where it has such: a run is
// resumed to the same bytes. The setting is the process's; what has no such kernel says so when it runs.
#include <ATen/Context.h>

namespace rlt::cuda {
namespace {

[[maybe_unused]] const bool ordered = [] {
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  return true;
}();

}  // namespace
}  // namespace rlt::cuda
