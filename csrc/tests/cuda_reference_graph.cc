// Replaces device graphs in tests without a GPU, with a reference for the kernel that gathers pages.
#include <cstring>

#include "cuda/engine/graph.h"
#include "cuda/kernels/kernels.h"

namespace rlt::cuda {
namespace {

struct Again : Graph {
  explicit Again(std::function<void()> b) : body(std::move(b)) {}
  void replay() override { body(); }
  std::function<void()> body;
};

}  // namespace

std::unique_ptr<Graph> record(const Graph*, const std::function<void()>& body) {
  return std::make_unique<Again>(body);
}

void gather(Stream, const Place* places, void* const* pages, const int32_t* borders, Shape shape,
            int64_t layer, void* k, void* v, int64_t sequences, int64_t) {
  const int64_t bytes = shape.head_dim * (shape.type == Type::kF32 ? 4 : 2);
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t row = borders[s]; row < borders[s + 1]; ++row) {
      const int64_t position = row - borders[s];
      const bool in_prefix = position < places[s].prefix_length;
      const int64_t at = in_prefix ? position : position - places[s].prefix_length;
      const auto* page = static_cast<const char*>(
          pages[(in_prefix ? places[s].prefix_page : places[s].tail_page) + at / kPage]);
      for (int64_t side = 0; side < 2; ++side) {
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
          std::memcpy(static_cast<char*>(side == 0 ? k : v) + (row * shape.kv_heads + h) * bytes,
                      page + (((layer * 2 + side) * shape.kv_heads + h) * kPage + at % kPage) * bytes,
                      static_cast<size_t>(bytes));
        }
      }
    }
  }
}

}  // namespace rlt::cuda
