#include "kernels/weight_memory.h"

#include <mutex>

#include "kernels/buffer.h"

namespace rlt {

WeightMemory::WeightMemory(int64_t bytes) : size_(bytes) {
  // What a block has left where the next weights do not fit is never touched, so it takes no memory.
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
