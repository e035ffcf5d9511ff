// Selecting rows by index, with repeats, and the setting that makes sums deterministic.
#include <ATen/ops/index_select.h>

#include <optional>

#include "check.h"
#include "ops/ordered.h"
#include "ops/packed.h"
#include "support.h"

namespace {

using rlt::test::Random;
using rlt::test::relative;
using rlt::test::vector_of;

TEST(select_rows_adds_the_gradients_of_rows_that_come_twice) {
  Random random(1);
  const at::Tensor index = vector_of(std::vector<int64_t>{3, 0, 3, 3, 1});
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{4, 6}, {4}, {4, 2, 3}}) {
    const at::Tensor x = random.normal(sizes).requires_grad_(true);
    const at::Tensor y = rlt::select_rows(x, index), grad = random.normal(y.sizes().vec());
    EXPECT(y.detach().equal(at::index_select(x.detach(), 0, index)));
    y.mul(grad).sum().backward();
    EXPECT_AT_MOST(relative(x.grad()[3], grad[0].add(grad[2]).add(grad[3])), 1e-6, "a row that comes thrice");
    EXPECT(x.grad()[0].equal(grad[1]));
    EXPECT_EQUAL(x.grad()[2].abs().sum().item<float>(), 0.0f);
  }
  EXPECT_THROWS("a scalar has no rows", rlt::select_rows(at::empty({}, at::kFloat), index));
}

// Two overlapping backward passes: the setting stays on until both have ended.
TEST(ordered_sums_end_with_the_last_who_wants_them) {
  const auto on = [] { return at::globalContext().deterministicAlgorithms(); };
  EXPECT(!on());
  std::optional<rlt::Ordered> first, second;
  first.emplace();
  second.emplace();
  first.reset();
  EXPECT(on());
  second.reset();
  EXPECT(!on());
}

}  // namespace
