#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "cuda/engine/runner.h"

namespace rlt::cuda {
namespace {

template <typename T>
int64_t bytes(int64_t count) {
  constexpr int64_t align = 256;
  return (count * static_cast<int64_t>(sizeof(T)) + align - 1) / align * align;
}

}  // namespace

Script::Script(int64_t rows, int64_t places, int64_t pages, c10::Device device)
    : rows_(rows), places_(places), pages_(pages) {
  const int64_t size = bytes<Row>(rows) + bytes<Place>(places) + bytes<void*>(pages);
  host_ = at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(!device.is_cpu()));
  there_ = at::empty({size}, at::TensorOptions(at::kByte).device(device));
}

void Script::clear() { row_count_ = place_count_ = page_count_ = 0; }

const Row* Script::device_rows() const {
  return reinterpret_cast<const Row*>(there_.const_data_ptr<uint8_t>());
}

const Place* Script::device_places() const {
  return reinterpret_cast<const Place*>(there_.const_data_ptr<uint8_t>() + bytes<Row>(rows_));
}

void* const* Script::device_pages() const {
  return reinterpret_cast<void* const*>(there_.const_data_ptr<uint8_t>() + bytes<Row>(rows_) +
                                        bytes<Place>(places_));
}

int32_t Script::add_place(const std::vector<void*>& prefix, int64_t prefix_length,
                          const std::vector<void*>& tail) {
  auto* const host = host_.mutable_data_ptr<uint8_t>();
  auto* const place = reinterpret_cast<Place*>(host + bytes<Row>(rows_)) + place_count_;
  auto** const pages = reinterpret_cast<void**>(host + bytes<Row>(rows_) + bytes<Place>(places_));
  const auto list = [&](const std::vector<void*>& segment) {
    const auto first = static_cast<int32_t>(page_count_);
    TORCH_INTERNAL_ASSERT(page_count_ + static_cast<int64_t>(segment.size()) <= pages_);
    std::copy(segment.begin(), segment.end(), pages + page_count_);
    page_count_ += static_cast<int64_t>(segment.size());
    return first;
  };
  TORCH_INTERNAL_ASSERT(place_count_ < places_);
  place->prefix_length = static_cast<int32_t>(prefix_length);
  place->prefix_page = list(prefix);
  place->tail_page = list(tail);
  return static_cast<int32_t>(place_count_++);
}

void Script::add_row(const Row& row) {
  TORCH_INTERNAL_ASSERT(row_count_ < rows_);
  reinterpret_cast<Row*>(host_.mutable_data_ptr<uint8_t>())[row_count_++] = row;
}

void Script::send() {
  const int64_t used =
      bytes<Row>(rows_) + bytes<Place>(places_) + page_count_ * static_cast<int64_t>(sizeof(void*));
  there_.narrow(0, 0, used).copy_(host_.narrow(0, 0, used), /*non_blocking=*/true);
}

}  // namespace rlt::cuda
