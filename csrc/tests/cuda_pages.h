// Pages of keys and values on the device under test, for tests of the generation kernels.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "support.h"

namespace rlt::test {

inline at::ScalarType scalar_type(cuda::Type type) {
  return type == cuda::Type::kF32 ? at::kFloat : type == cuda::Type::kBF16 ? at::kBFloat16 : at::kHalf;
}

// Copies structures to the device under test, as bytes.
template <typename S>
at::Tensor bytes_of(const std::vector<S>& all) {
  at::Tensor t = at::empty({static_cast<int64_t>(all.size() * sizeof(S))}, at::kByte);
  if (!all.empty()) std::memcpy(t.mutable_data_ptr(), all.data(), all.size() * sizeof(S));
  return t.to(device());
}

template <typename S>
const S* as(const at::Tensor& bytes) {
  return static_cast<const S*>(bytes.const_data_ptr());
}

// A sequence of `length` positions. The first `prefix` have pages of their own, or use those of the earlier
// sequence `shares`.
struct Sequence {
  int64_t prefix, length, shares = -1;
};

// The pages of several sequences, in random order. Unwritten positions hold NaN.
class PageTable {
 public:
  PageTable(const cuda::Shape& shape, const std::vector<Sequence>& sequences, Random& random) {
    const auto pages_of = [](int64_t positions) { return (positions + cuda::kPage - 1) / cuda::kPage; };
    int32_t pages = 0;
    for (const Sequence& s : sequences) {
      cuda::Place place{static_cast<int32_t>(s.prefix), pages, 0};
      if (s.shares >= 0) {
        place.prefix_page = places[static_cast<size_t>(s.shares)].prefix_page;
      } else {
        pages += static_cast<int32_t>(pages_of(s.prefix));
      }
      place.tail_page = pages;
      pages += static_cast<int32_t>(pages_of(s.length - s.prefix));
      places.push_back(place);
    }
    order_.resize(static_cast<size_t>(pages));
    std::iota(order_.begin(), order_.end(), 0);
    for (int64_t i = pages - 1; i > 0; --i) {
      std::swap(order_[static_cast<size_t>(i)], order_[static_cast<size_t>(random.below(i + 1))]);
    }
    host = at::full({pages, shape.layers, 2, shape.kv_heads, cuda::kPage, shape.head_dim},
                    std::numeric_limits<double>::quiet_NaN(), scalar_type(shape.type));
  }

  // Copies host to the device; back() copies the other way.
  void upload() {
    memory_ = host.to(device(), false, /*copy=*/true);
    std::vector<void*> list;
    const int64_t bytes = static_cast<int64_t>(memory_.nbytes()) / memory_.size(0);
    for (const int64_t page : order_) {
      list.push_back(static_cast<char*>(memory_.mutable_data_ptr()) + page * bytes);
    }
    list_ = bytes_of(list);
    places_ = bytes_of(places);
  }
  at::Tensor back() const { return memory_.cpu(); }
  const cuda::Place* on_device() const { return as<cuda::Place>(places_); }
  void* const* pages() const { return as<void*>(list_); }

  // Returns positions [from, end) of `of`, which is host or has its shape: [layers, 2, kv_heads, positions,
  // head_dim] for each page.
  std::vector<at::Tensor> runs(const at::Tensor& of, int64_t sequence, int64_t from, int64_t end) const {
    const cuda::Place& place = places[static_cast<size_t>(sequence)];
    std::vector<at::Tensor> all;
    while (from < end) {
      const bool in_prefix = from < place.prefix_length;
      const int64_t at = in_prefix ? from : from - place.prefix_length;
      const int64_t page = (in_prefix ? place.prefix_page : place.tail_page) + at / cuda::kPage;
      const int64_t last = in_prefix ? std::min<int64_t>(end, place.prefix_length) : end;
      const int64_t n = std::min(last - from, cuda::kPage - at % cuda::kPage);
      all.push_back(of.select(0, order_[static_cast<size_t>(page)]).narrow(3, at % cuda::kPage, n));
      from += n;
    }
    return all;
  }

  std::vector<cuda::Place> places;
  at::Tensor host;

 private:
  std::vector<int64_t> order_;  // where each page of the list is
  at::Tensor memory_, list_, places_;
};

}  // namespace rlt::test
