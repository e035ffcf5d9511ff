// The memory of libtorch's tensors on the CPU.
#include "kernels/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/alignment.h>
#include <c10/util/Exception.h>

namespace rlt {
namespace {

struct TensorMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = bytes == 0 ? nullptr : aligned_memory(bytes, c10::gAlignment);
    TORCH_CHECK(memory != nullptr || bytes == 0,
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes, " bytes.");
    return {memory, memory, &release_memory, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_memory; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

TensorMemory tensor_memory;

REGISTER_ALLOCATOR(c10::kCPU, &tensor_memory)

}  // namespace
}  // namespace rlt
