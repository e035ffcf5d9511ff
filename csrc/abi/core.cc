#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "abi/abi.h"
#include "kernels/kernels.h"
#include "kernels/parallel.h"

namespace rlt {
namespace {

std::atomic<int64_t> live{0};

// A static error, for when there is no memory to allocate one.
rlt_error& out_of_memory() {
  static rlt_error e{"out of memory"};
  return e;
}

std::string first_line(const std::string& text) {
  const auto begin = text.find_first_not_of('\n');
  if (begin == std::string::npos) return "unknown error";
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

rlt_tensor give(at::Tensor t) {
  if (!t.defined()) return 0;
  live.fetch_add(1, std::memory_order_relaxed);
  return reinterpret_cast<rlt_tensor>(t.unsafeReleaseTensorImpl());
}

at::Tensor borrow(rlt_tensor handle) {
  if (handle == 0) return {};
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  return at::Tensor(Pointer::reclaim_copy(reinterpret_cast<c10::TensorImpl*>(handle)));
}

rlt_error* current_exception() noexcept {
  try {
    try {
      throw;
    } catch (const c10::Error& e) {
      return new rlt_error{first_line(e.what_without_backtrace())};
    } catch (const std::bad_alloc&) {
      return &out_of_memory();
    } catch (const std::exception& e) {
      return new rlt_error{first_line(e.what())};
    } catch (...) {
      return new rlt_error{"unknown C++ exception"};
    }
  } catch (...) {
    return &out_of_memory();
  }
}

at::ScalarType scalar_type(int32_t dtype) {
  switch (dtype) {
    case RLT_F32:
      return at::kFloat;
    case RLT_I64:
      return at::kLong;
    case RLT_I32:
      return at::kInt;
    case RLT_BF16:
      return at::kBFloat16;
    case RLT_F16:
      return at::kHalf;
    case RLT_U8:
      return at::kByte;
  }
  TORCH_CHECK(false, "unknown element type ", dtype);
}

c10::Device device_of(int32_t device) {
  if (device == RLT_CPU) return at::kCPU;
  TORCH_CHECK(device >= 0 && device < at::detail::getCUDAHooks().deviceCount(), "no device ", device);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device)};
}

}  // namespace rlt

int32_t rlt_abi_version(const char** libtorch) {
  *libtorch = TORCH_VERSION;
  return RLT_ABI_VERSION;
}
const char* rlt_error_text(const rlt_error* e) { return e->text.c_str(); }
void rlt_error_free(rlt_error* e) {
  if (e != nullptr && e != &rlt::out_of_memory()) delete e;
}
int64_t rlt_live(void) { return rlt::live.load(); }

void rlt_tensor_free(const rlt_tensor* ts, int32_t n) {
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  for (int32_t i = 0; i < n; ++i) {
    if (ts[i] == 0) continue;
    rlt::live.fetch_sub(1, std::memory_order_relaxed);
    Pointer::reclaim(reinterpret_cast<c10::TensorImpl*>(ts[i]));
  }
}

rlt_error* rlt_init(int32_t threads) {
  return rlt::guard([&] {
    TORCH_CHECK(threads > 0, "threads must be positive, got ", threads);
    at::set_num_threads(threads);
    rlt::set_thread_count(threads);
  });
}

const char* rlt_cpu_capability(void) {
  static const std::string plain = at::get_cpu_capability(), both = plain + " and BF16";
  return (rlt::kernels().multiply_pairs ? both : plain).c_str();
}

int32_t rlt_kernel_sets(rlt_kernel_set* sets, int32_t room, int32_t measure) {
  rlt::Speed speeds[rlt::kInstructionSets] = {};
  if (measure != 0) rlt::measure(speeds);
  for (int32_t i = 0; i < std::min(room, rlt::kInstructionSets); ++i) {
    const rlt::InstructionSet& set = rlt::instruction_sets()[i];
    sets[i] = {set.name, set.runs, speeds[i].f32, speeds[i].bf16};
  }
  return rlt::kInstructionSets;
}

rlt_error* rlt_use_kernels(const char* name) {
  return rlt::guard([&] {
    std::string running;
    for (int i = 0; i < rlt::kInstructionSets; ++i) {
      const rlt::InstructionSet& set = rlt::instruction_sets()[i];
      if (set.runs && set.name == std::string(name)) return rlt::use_kernels(set);
      if (set.runs) running += (running.empty() ? "" : ", ") + std::string(set.name);
    }
    TORCH_CHECK(false, "this processor does not run the kernels \"", name, "\"; it runs ", running);
  });
}
