// Memory for vectors: aligned to cache lines, uninitialised, in huge pages where it is large.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "kernels/memory.h"

namespace rlt {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : size_(size) {
    constexpr size_t kLine = 64;
    const size_t bytes = static_cast<size_t>(std::max<int64_t>(size, 1)) * sizeof(T);
    void* const memory = aligned_memory(bytes, bytes >= kHugePage ? kHugePage : kLine);
    if (memory == nullptr) throw std::bad_alloc();
    // Streams of weights cross few page borders this way; where the system refuses, nothing is lost. What
    // does not fill a huge page at the end takes none.
    if (bytes >= kHugePage) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    data_.reset(static_cast<T*>(memory));
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }

  // Makes room for size elements; what was there is lost where it has to grow.
  void reserve(int64_t size) {
    if (size <= size_) return;
    *this = Buffer();
    *this = Buffer(size);
  }

 private:
  struct Free {
    void operator()(T* memory) const { release_memory(memory); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace rlt
