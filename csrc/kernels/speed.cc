// How fast each instruction set multiplies on this processor: whether it has an instruction says nothing of
// that. Those for bfloat16 are slower than float32 on some that have them.
#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/kernels.h"

namespace rlt {
namespace {

// A product that fits the second-level cache: 96 rows of 1024 by 64 columns.
constexpr int64_t kRows = 96, kInner = 1024, kPanels = 4;
constexpr double kOperations = 2.0 * kRows * kInner * kPanels * kPanel;

double seconds(const Product& multiply, int64_t k, const std::vector<float>& a, const std::vector<float>& b,
               std::vector<float>& c) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t row = 0; row < kRows; row += multiply.rows) {
    Tile t;
    t.rows = static_cast<int>(std::min<int64_t>(multiply.rows, kRows - row));
    t.a = a.data() + row * k;
    t.a_stride = k;
    t.c = c.data() + row * kPanels * kPanel;
    t.c_stride = kPanels * kPanel;
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
      if (!set.runs || set.by_name) continue;
      const Kernels& k = *set.kernels;
      const bool pairs = static_cast<bool>(k.multiply_pairs);
      speeds[i].f32 = std::max(speeds[i].f32, kOperations / seconds(k.multiply_f32, kInner, a, b, c));
      const double bf16 =
          pairs ? seconds(k.multiply_pairs, kInner / 2, a, b, c) : seconds(k.multiply_bf16, kInner, a, b, c);
      speeds[i].bf16 = std::max(speeds[i].bf16, kOperations / bf16);
    }
  }
  for (Speed& s : speeds) s = {s.f32 / 1e9, s.bf16 / 1e9};
}

}  // namespace rlt
