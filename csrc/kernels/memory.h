// Aligned memory.
//
// posix_memalign before glibc 2.38 never takes a freed block for one of the same size and alignment: it asks
// for more than fits there. A process that frees and takes blocks of the same sizes at every step then grows
// by its holes, to almost twice what it uses. A block of malloc with room to align in is found again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace rlt {

constexpr size_t kHugePage = 2 << 20;

// alignment is a power of two of at least 16. Null where there is no memory.
inline void* aligned_memory(size_t bytes, size_t alignment) {
  if (bytes > SIZE_MAX - alignment) return nullptr;
  auto* const block = static_cast<char*>(std::malloc(bytes + alignment));  // aligned to 16
  if (block == nullptr) return nullptr;
  char* const memory = block + alignment - reinterpret_cast<uintptr_t>(block) % alignment;
  reinterpret_cast<void**>(memory)[-1] = block;
  return memory;
}

// memory is of aligned_memory, or null.
inline void release_memory(void* memory) {
  if (memory != nullptr) std::free(static_cast<void**>(memory)[-1]);
}

}  // namespace rlt
