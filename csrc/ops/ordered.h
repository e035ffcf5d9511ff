// libtorch's sums in a fixed order, where it has a kernel for that.
#pragma once

#include <ATen/Context.h>

namespace rlt {

// While it lives, the operators that add by atomic operations on a GPU take kernels that do not. The setting
// is the process's, and products by cuBLAS are refused under it, so it is for the operators alone that need
// it.
class Ordered {
 public:
  Ordered() {
    context_.setDeterministicFillUninitializedMemory(false);
    context_.setDeterministicAlgorithms(true, false);
  }
  ~Ordered() {
    context_.setDeterministicAlgorithms(on_, warns_);
    context_.setDeterministicFillUninitializedMemory(fills_);
  }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;

 private:
  at::Context& context_ = at::globalContext();
  const bool on_ = context_.deterministicAlgorithms(), warns_ = context_.deterministicAlgorithmsWarnOnly(),
             fills_ = context_.deterministicFillUninitializedMemory();
};

}  // namespace rlt
