// Layout of the sequences of a packed batch, for attention on a GPU.
#include <vector>

#include "check.h"
#include "cuda/ops/attention.h"
#include "support.h"

namespace {

using rlt::cuda::layout_of;
using rlt::cuda::Span;
using rlt::test::device;
using rlt::test::vector_of;

// A prefix of three rows, two sequences that continue it, and an independent one.
const std::vector<Span> kSpans{{0, 3, 0, 0}, {3, 2, 0, 3}, {5, 1, 0, 3}, {6, 2, 0, 0}};

bool equal(const at::Tensor& got, const std::vector<int32_t>& want) {
  return got.cpu().equal(vector_of(want));
}

TEST(cuda_layout_puts_a_beginnings_keys_before_those_that_go_on_with_it) {
  const auto l = layout_of(kSpans, device());
  EXPECT_EQUAL(l->rows, 8);
  EXPECT_EQUAL(l->keys, 14);
  EXPECT_EQUAL(l->longest, 3);
  EXPECT_EQUAL(l->longest_keys, 5);
  EXPECT(equal(l->rows_at, {0, 3, 5, 6, 8}));
  EXPECT(equal(l->keys_at, {0, 3, 8, 12, 14}));
  EXPECT(equal(l->padded_row, {0, 1, 2, 32, 33, 64, 96, 97}));
  EXPECT(equal(l->row_of, {0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7}));
  EXPECT(equal(l->taken_at, {0, 3, 6, 9, 10, 11, 12, 13, 14}));
  EXPECT(equal(l->taken, {0, 3, 8, 1, 4, 9, 2, 5, 10, 6, 7, 11, 12, 13}));
}

// The gradient of a shared row is the sum over all sequences that see it, in every type of gradient.
TEST(cuda_layout_sums_the_gradients_of_what_is_seen) {
  const auto l = layout_of(kSpans, device());
  const at::Tensor t = rlt::test::Random(1).normal({8, 5}).to(device());
  EXPECT(seen(*l, t).equal(t.index_select(0, l->row_of)));
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor grad = rlt::test::Random(2).normal({14, 5}).to(device(), type);
    const at::Tensor want = t.zero_().clone().index_add(0, l->row_of, grad.to(at::kFloat)),
                     got = seen_backward(*l, grad);
    EXPECT(got.scalar_type() == at::kFloat);
    EXPECT_AT_MOST(rlt::test::relative(got, want), 1e-6, c10::toString(type));
  }
}

TEST(cuda_layout_is_made_once_for_the_layers_of_a_pass) {
  const auto first = layout_of(kSpans, device());
  EXPECT(layout_of(kSpans, device()) == first);
  const auto other = layout_of({{0, 3, 0, 0}, {3, 2, 0, 0}}, device());
  EXPECT(other != first);
  EXPECT(!other->continued());
  EXPECT(layout_of(kSpans, device()) != other);
}

}  // namespace
