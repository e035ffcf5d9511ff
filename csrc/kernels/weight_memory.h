// Memory for packed weights. Those of one layer seldom fill huge pages, without which decoding waits for the
// addresses of small ones, so layers share blocks of huge pages. A block is freed with the last of them.
#pragma once

#include <cstdint>
#include <memory>

namespace rlt {

class WeightMemory {
 public:
  WeightMemory() = default;
  // Uninitialised and aligned to cache lines.
  explicit WeightMemory(int64_t bytes);

  char* data() { return data_.get(); }
  const char* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  std::shared_ptr<char> data_;
  int64_t size_ = 0;
};

}  // namespace rlt
