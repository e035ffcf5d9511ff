// libtorch's sums in a fixed order, where it has a kernel for that.
#pragma once

#include <ATen/Context.h>

#include <mutex>

namespace rlt {

// While one lives, libtorch's operators that add by atomic operations on a GPU use kernels that do not. The
// setting belongs to the process and makes libtorch refuse cuBLAS products, so hold it only around an
// operator that needs it. Instances may overlap, on any threads: the first changes the setting, the last
// restores it.
class Ordered {
 public:
  Ordered() {
    const std::lock_guard<std::mutex> lock(held().mutex);
    if (held().count++ > 0) return;
    at::Context& context = at::globalContext();
    held().before = {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
                     context.deterministicFillUninitializedMemory()};
    set({true, false, false});
  }
  ~Ordered() {
    const std::lock_guard<std::mutex> lock(held().mutex);
    if (--held().count == 0) set(held().before);
  }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;

 private:
  struct Setting {
    bool on, warns, fills;
  };
  struct Held {
    std::mutex mutex;
    int64_t count = 0;
    Setting before{};
  };
  static Held& held() {
    static Held all;
    return all;
  }
  static void set(const Setting& s) {
    at::globalContext().setDeterministicFillUninitializedMemory(s.fills);
    at::globalContext().setDeterministicAlgorithms(s.on, s.warns);
  }
};

}  // namespace rlt
