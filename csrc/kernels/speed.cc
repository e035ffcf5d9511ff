// How fast each instruction set multiplies on this processor: whether it has an instruction says nothing of
// that. Those for bfloat16 are slower than float32 on some that have them.
#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/kernels.h"

namespace rlt {
namespace {

// A product that fits the second-level cache: 24 rows of 1024 by 64 columns.
constexpr int64_t kRows = 24, kInner = 1024, kPanels = 4;
constexpr double kOperations = 2.0 * kRows * kInner * kPanels * kPanel;

double seconds(void (*multiply)(const Tile&), int64_t k, const std::vector<float>& a,
               const std::vector<float>& b, std::vector<float>& c) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t row = 0; row < kRows; row += kTileRows) {
    Tile t;
    t.rows = static_cast<int>(std::min<int64_t>(kTileRows, kRows - row));
    for (int r = 0; r < t.rows; ++r) {
      t.a[r] = a.data() + (row + r) * k;
      t.c[r] = c.data() + (row + r) * kPanels * kPanel;
    }
    t.b = b.data();
    t.k = k;
    t.panels = kPanels;
    t.panel_stride = k * kPanel;
    multiply(t);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void measure(Speed (&speeds)[kInstructionSets]) {
  constexpr int kTurns = 12;
  // As floats and as pairs of bfloat16 alike ordinary numbers.
  const std::vector<float> a(kRows * kInner, 1.0009765f), b(kInner * kPanels * kPanel, 1.0009765f);
  std::vector<float> c(kRows * kPanels * kPanel);
  for (Speed& s : speeds) s = {0, 0};
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int i = 0; i < kInstructionSets; ++i) {
      const InstructionSet& set = instruction_sets()[i];
      if (!set.runs) continue;
      const Kernels& k = *set.kernels;
      const bool pairs = k.multiply_pairs != nullptr;
      speeds[i].f32 = std::max(speeds[i].f32, kOperations / seconds(k.multiply_f32, kInner, a, b, c));
      const double bf16 = pairs ? seconds(k.multiply_pairs, kInner / 2, a, b, c)
                                : seconds(k.multiply_bf16, kInner, a, b, c);
      speeds[i].bf16 = std::max(speeds[i].bf16, kOperations / bf16);
    }
  }
  for (Speed& s : speeds) s = {s.f32 / 1e9, s.bf16 / 1e9};
}

}  // namespace rlt
