// Attention over pages, against libtorch's products in double.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include <string>

#include "check.h"
#include "cuda/kernels/stream.h"
#include "cuda_pages.h"

namespace {

using namespace rlt;
using rlt::cuda::Type;
using rlt::test::as;
using rlt::test::bytes_of;
using rlt::test::device;
using rlt::test::Random;

struct Case {
  cuda::Shape shape;
  std::vector<test::Sequence> sequences;
  int64_t window = 0;
  double softcap = 0;
  int64_t slack = 0;  // how much `longest` exceeds the longest sequence
  double scale = 0.3;
};

std::string name_of(const Case& c) {
  std::string name = "heads " + std::to_string(c.shape.heads) + "/" + std::to_string(c.shape.kv_heads) +
                     " of " + std::to_string(c.shape.head_dim) + ", type " +
                     std::to_string(static_cast<int>(c.shape.type)) + ", window " + std::to_string(c.window) +
                     ", softcap " + std::to_string(c.softcap) + ", lengths";
  for (const test::Sequence& s : c.sequences) {
    name += " " + std::to_string(s.prefix) + "+" + std::to_string(s.length - s.prefix);
  }
  return name;
}

// Two rows for each sequence: one at its last position, one at the position before.
class Decode {
 public:
  Decode(const Case& c, Random& random) : c_(c), table_(c.shape, c.sequences, random) {
    const at::ScalarType type = test::scalar_type(c.shape.type);
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      const int64_t length = c.sequences[s].length;
      for (at::Tensor& run : table_.runs(table_.host, static_cast<int64_t>(s), 0, length)) {
        run.copy_(random.normal(run.sizes()));
      }
      for (const int64_t p : {length - 1, length / 2}) {
        rows_.push_back({0, static_cast<int32_t>(p), static_cast<int32_t>(s), 0});
      }
      longest_ = std::max(longest_, length - 1 + c.slack);
    }
    table_.upload();
    queries_ = random.normal({count(), c.shape.heads, c.shape.head_dim}).to(type);
  }

  // [rows, heads, head_dim]
  at::Tensor run(bool with_room) const {
    const at::Tensor rows = bytes_of(rows_), queries = queries_.to(device());
    const int64_t bytes = cuda::decode_room(c_.shape, count(), longest_);
    at::Tensor room = at::full({bytes + 1}, 0xff, at::TensorOptions(device()).dtype(at::kByte));
    at::Tensor out = at::full(queries.sizes(), std::nan(""), queries.options());
    cuda::decode_attention(cuda::current_stream(device()), as<cuda::Row>(rows), table_.on_device(),
                           table_.pages(), queries.const_data_ptr(), c_.scale, c_.window, c_.softcap,
                           c_.shape, kLayer, out.mutable_data_ptr(), count(), longest_,
                           with_room ? room.mutable_data_ptr() : nullptr);
    EXPECT_EQUAL(room.cpu().select(0, bytes).item<int64_t>(), 0xff);
    return out.cpu();
  }

  at::Tensor want() const {
    std::vector<at::Tensor> all;
    const cuda::Shape& s = c_.shape;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int64_t end = rows_[i].position + 1,
                    from = c_.window == 0 ? 0 : std::max<int64_t>(0, end - c_.window);
      // [2, kv_heads, positions, head_dim]
      const at::Tensor kv =
          at::cat(table_.runs(table_.host, rows_[i].place, from, end), 3).select(0, kLayer).to(at::kDouble);
      const at::Tensor q = queries_.select(0, static_cast<int64_t>(i))
                               .to(at::kDouble)
                               .view({s.kv_heads, s.heads / s.kv_heads, -1});
      at::Tensor scores = q.matmul(kv.select(0, 0).transpose(1, 2)).mul(c_.scale);
      if (c_.softcap != 0) scores = scores.div(c_.softcap).tanh().mul(c_.softcap);
      all.push_back(scores.softmax(-1).matmul(kv.select(0, 1)).view({s.heads, -1}));
    }
    return at::stack(all);
  }

 private:
  static constexpr int64_t kLayer = 1;

  int64_t count() const { return static_cast<int64_t>(rows_.size()); }

  Case c_;
  test::PageTable table_;
  std::vector<cuda::Row> rows_;
  at::Tensor queries_;
  int64_t longest_ = 0;
};

void check(const Case& c, Random& random) {
  const Decode decode(c, random);
  // Two-byte types round the probabilities and the output.
  const double limit = c.shape.type == Type::kF32 ? 3e-6 : c.shape.type == Type::kBF16 ? 8e-3 : 1e-3;
  const at::Tensor want = decode.want(), whole = decode.run(false), parts = decode.run(true);
  EXPECT_AT_MOST(test::relative(whole, want), limit, name_of(c) + ", whole");
  EXPECT_AT_MOST(test::relative(parts, want), limit, name_of(c) + ", in parts");
  EXPECT(test::same_bits(decode.run(true), parts));
}

const std::vector<Type> kTypes{Type::kF32, Type::kBF16, Type::kF16};
// Short and long sequences, in one or two segments, with full and partial pages, two with a shared prefix.
const std::vector<test::Sequence> kSequences{{0, 1},      {1, 2},     {16, 33},  {0, 48},   {37, 131},
                                             {37, 90, 4}, {120, 121}, {64, 200}, {200, 214}};

TEST(decode_attention_of_heads_of_any_width) {
  Random random(7);
  for (const Type type : kTypes) {
    for (const int64_t d : {4, 6, 8, 16, 40, 64, 80, 96, 128, 160, 250, 256}) {
      check({{2, 4, 2, d, type}, {{0, 1}, {37, 131}, {16, 77}}}, random);
    }
  }
}

TEST(decode_attention_of_groups_of_heads) {
  Random random(8);
  for (const Type type : kTypes) {
    for (const int64_t group : {1, 2, 3, 5, 7, 8, 9, 16, 19}) {
      check({{2, 2 * group, 2, 64, type}, {{5, 100}, {0, 12}}}, random);
    }
  }
}

TEST(decode_attention_of_sequences_of_any_length) {
  Random random(9);
  for (const Type type : kTypes) {
    for (const int64_t window : {0, 1, 20, 1000}) {
      check({{2, 6, 2, 32, type}, kSequences, window}, random);
      check({{2, 3, 3, 20, type}, kSequences, window, 0, 700}, random);
    }
    check({{2, 6, 2, 32, type}, kSequences, 0, 1.5}, random);
    check({{3, 12, 2, 128, type}, kSequences, 50, 4, 100}, random);
    // One sequence in the maximum number of parts.
    check({{2, 6, 2, 64, type}, {{700, 1500}}, 0, 0, 500}, random);
    check({{2, 2, 1, 64, type}, {{0, 700}}, 300}, random);
  }
}

TEST(decode_attention_of_nothing) {
  const cuda::Shape shape{1, 2, 1, 64, Type::kBF16};
  EXPECT_EQUAL(cuda::decode_room(shape, 0, 0), 0);
  cuda::decode_attention(cuda::current_stream(device()), nullptr, nullptr, nullptr, nullptr, 1, 0, 0, shape,
                         0, nullptr, 0, 0, nullptr);
}

// Scores around ±1000.
TEST(decode_attention_of_large_scores) {
  Random random(10);
  for (const Type type : kTypes) {
    const Decode decode({{2, 6, 2, 32, type}, {{3, 70}, {0, 200}}, 0, 0, 0, 60}, random);
    EXPECT_AT_MOST(test::relative(decode.run(false), decode.want()), 1e-2, "whole");
    EXPECT_AT_MOST(test::relative(decode.run(true), decode.want()), 1e-2, "in parts");
  }
}

}  // namespace
