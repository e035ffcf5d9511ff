// Aligned memory, and that blocks freed and taken again do not make the process grow.
#include "kernels/memory.h"

#include <ATen/ops/empty.h>
#include <malloc.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels/buffer.h"
#include "kernels/weight_memory.h"

namespace {

TEST(memory_is_aligned) {
  for (const size_t alignment : {size_t{16}, size_t{64}, size_t{4096}, size_t{2} << 20}) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100000}}) {
      void* const memory = rlt::aligned_memory(bytes, alignment);
      EXPECT_EQUAL(reinterpret_cast<uintptr_t>(memory) % alignment, size_t{0});
      rlt::release_memory(memory);
    }
  }
  rlt::release_memory(nullptr);
  EXPECT(rlt::aligned_memory(SIZE_MAX, 64) == nullptr);
  volatile size_t more = SIZE_MAX / 4;  // than there is; no constant, which compilers refuse
  EXPECT(rlt::aligned_memory(more, 64) == nullptr);
  EXPECT_EQUAL(at::empty({0}).data_ptr(), static_cast<void*>(nullptr));
  EXPECT_EQUAL(reinterpret_cast<uintptr_t>(at::empty({3}).data_ptr()) % 64, size_t{0});
}

// Between a tensor and the next of its size something small stays, as the nodes of a graph or a parameter do.
TEST(freed_tensors_make_room_for_the_next) {
  constexpr int64_t kBytes = 100000, kTimes = 300;
  const auto once = [](int64_t i, std::vector<at::Tensor>& kept) {
    const at::Tensor first = at::empty({kBytes}, at::kByte);
    kept.push_back(at::empty({1 + i % 3 * 10}));
    const at::Tensor second = at::empty({kBytes + i % 2 * 64}, at::kByte);
    kept.push_back(at::empty({5}));
    const rlt::Buffer<uint8_t> third(kBytes);
  };
  std::vector<at::Tensor> kept;
  once(0, kept);
  const size_t before = mallinfo2().arena;
  for (int64_t i = 1; i < kTimes; ++i) once(i, kept);
  const size_t after = mallinfo2().arena;
  EXPECT_AT_MOST(after > before ? static_cast<double>(after - before) : 0.0, 10.0 * kBytes,
                 "bytes that the heap grew by");
}

// Small weights lie in one block, each on cache lines of its own; a copy keeps them.
TEST(weights_share_blocks) {
  rlt::WeightMemory kept;
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  {
    std::vector<rlt::WeightMemory> all;
    for (const int64_t bytes : {1, 100, 5 << 20, 7 << 20, 8 << 20, 8 << 20, 8 << 20, 20 << 20, 64}) {
      all.emplace_back(bytes);
      const auto begin = reinterpret_cast<uintptr_t>(all.back().data());
      EXPECT_EQUAL(all.back().size(), bytes);
      EXPECT_EQUAL(begin % 64, uintptr_t{0});
      for (const auto& [from, to] : ranges) EXPECT(begin >= to || begin + bytes <= from);
      ranges.emplace_back(begin, begin + bytes);
    }
    EXPECT_EQUAL(ranges[1].first - ranges[0].first, uintptr_t{64});
    all[1].data()[99] = 7;
    kept = all[1];
  }
  EXPECT_EQUAL(kept.data()[99], char{7});
}

}  // namespace
