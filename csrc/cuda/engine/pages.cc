#include "cuda/engine/pages.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace rlt::cuda {
namespace {

constexpr int64_t kTogether = int64_t{16} << 20;  // bytes of one allocation, or one page if that is larger

int64_t bytes_of(const Shape& s) {
  const int64_t element = s.type == Type::kF32 ? 4 : 2, align = 256;
  return (s.layers * 2 * s.kv_heads * kPage * s.head_dim * element + align - 1) / align * align;
}

}  // namespace

Pages::Pages(Shape shape, c10::Device device) : bytes_(bytes_of(shape)), device_(device) {}

void* Pages::take() {
  if (free_.empty()) {
    const int64_t count = std::max<int64_t>(1, kTogether / bytes_);
    memory_.push_back(at::empty({count * bytes_}, at::TensorOptions(at::kByte).device(device_)));
    auto* const begin = static_cast<char*>(memory_.back().mutable_data_ptr());
    for (int64_t i = count; i-- > 0;) free_.push_back(begin + i * bytes_);
  }
  void* const page = free_.back();
  free_.pop_back();
  return page;
}

void PagedSegment::resize(int64_t) {
  for (void* page : held_) pages_->give_back(page);
  held_.clear();
  hidden.reset();
}

void PagedSegment::reach(int64_t positions) {
  while (static_cast<int64_t>(held_.size()) * kPage < positions) held_.push_back(pages_->take());
}

}  // namespace rlt::cuda
