#include "kernels/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/buffer.h"

namespace rlt {
namespace {

constexpr int64_t kLargest = 32 << 20;

// Bytes of all shared blocks.
std::atomic<int64_t> alive{0};

struct Block {
  explicit Block(int64_t bytes) : memory(bytes) { alive += bytes; }
  ~Block() { alive -= memory.size(); }

  Buffer<char> memory;
  int64_t used = 0;
};

// Half of what there is, so that blocks grow with a model, and weights that are packed again and again do not
// keep blocks much larger than themselves.
int64_t next_block(int64_t least) {
  constexpr int64_t kStep = kHugePage;
  return (std::min(std::max(alive / 2, least), kLargest) + kStep - 1) / kStep * kStep;
}

// Gives back the end of a block in which nothing will lie: of its last huge page in use, what is not used.
void release_end(Block& block) {
  constexpr uintptr_t kPage = 4096;
  char *const from = block.memory.data() + block.used, *const end = block.memory.data() + block.memory.size();
  const auto at = reinterpret_cast<uintptr_t>(from);
  char* const huge = from - at % kHugePage;
  madvise(huge, static_cast<size_t>(end - huge), MADV_NOHUGEPAGE);
  char* const page = from + (kPage - at % kPage) % kPage;
  if (page < end) madvise(page, static_cast<size_t>(end - page), MADV_DONTNEED);
}

}  // namespace

WeightMemory::WeightMemory(int64_t bytes) : size_(bytes) {
  constexpr int64_t kLine = 64;
  const int64_t size = (bytes + kLine - 1) / kLine * kLine;
  if (size > kLargest / 4) {
    const auto own = std::make_shared<Buffer<char>>(size);
    data_ = {own, own->data()};
    return;
  }
  static std::mutex mutex;
  static std::weak_ptr<Block> open;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Block> block = open.lock();
  if (block == nullptr || block->used + size > block->memory.size()) {
    if (block != nullptr) release_end(*block);
    block = std::make_shared<Block>(next_block(size));
    open = block;
  }
  data_ = {block, block->memory.data() + block->used};
  block->used += size;
}

}  // namespace rlt
