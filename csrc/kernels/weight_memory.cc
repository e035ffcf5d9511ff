#include "kernels/weight_memory.h"

#include <sys/mman.h>

#include <mutex>

#include "kernels/buffer.h"

namespace rlt {
namespace {

// Gives back the end of a block in which nothing will lie: of its last huge page in use, what comes after
// from.
void release_end(char* from, char* end) {
  constexpr uintptr_t kHugePage = 2 << 20, kPage = 4096;
  const auto at = reinterpret_cast<uintptr_t>(from);
  char* const huge = from - at % kHugePage;
  madvise(huge, static_cast<size_t>(end - huge), MADV_NOHUGEPAGE);
  char* const page = from + (kPage - at % kPage) % kPage;
  if (page < end) madvise(page, static_cast<size_t>(end - page), MADV_DONTNEED);
}

}  // namespace

WeightMemory::WeightMemory(int64_t bytes) : size_(bytes) {
  constexpr int64_t kBlock = 32 << 20, kLine = 64;
  using Block = Buffer<char>;
  const int64_t size = (bytes + kLine - 1) / kLine * kLine;
  std::shared_ptr<Block> block;
  int64_t offset = 0;
  if (size > kBlock / 4) {
    block = std::make_shared<Block>(size);
  } else {
    static std::mutex mutex;
    static std::weak_ptr<Block> open;
    static int64_t used;
    const std::lock_guard<std::mutex> lock(mutex);
    block = open.lock();
    if (block == nullptr || used + size > kBlock) {
      if (block != nullptr) release_end(block->data() + used, block->data() + kBlock);
      block = std::make_shared<Block>(kBlock);
      open = block;
      used = 0;
    }
    offset = used;
    used += size;
  }
  data_ = {block, block->data() + offset};
}

}  // namespace rlt
