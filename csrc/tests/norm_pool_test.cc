#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <string>

#include "check.h"
#include "ops/packed.h"
#include "support.h"

namespace {

using rlt::test::borders;
using rlt::test::distance;
using rlt::test::leaf;
using rlt::test::Random;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::total;
using rlt::test::vector_of;

constexpr double kEps = 1e-12;

TEST(add_layer_norm_equals_aten_layer_norm) {
  Random random(31);
  for (const int64_t width : {1, 15, 16, 17, 384, 768}) {
    // A mean far larger than the spread costs any float32 norm some digits.
    for (const double mean : {0.0, 10.0, 1e3, -1e4}) {
      const int64_t rows = 50;
      const at::Tensor x_values = random.normal({rows, width}, 1, mean),
                       r_values = random.normal({rows, width}, 0.5, mean);
      const at::Tensor weight = random.normal({width}, 0.5, 1), bias = random.normal({width});
      const double eps = width == 1 ? 1e-3 : kEps;
      const at::Tensor x = leaf(x_values), residual = leaf(r_values);
      // The reference starts from the float32 sum, because the norm cannot undo the rounding of the addition.
      const at::Tensor sum = leaf(x_values.add(r_values), at::kDouble);
      const auto [y, kept_sum, kept_mean, kept_rstd] = rlt::add_layer_norm(x, residual, weight, bias, eps);
      const at::Tensor want = at::layer_norm(sum, {width}, weight.to(at::kDouble), bias.to(at::kDouble), eps);
      const at::Tensor weights = random.normal({rows, width});
      y.backward(weights);
      want.backward(weights.to(at::kDouble));

      const std::string at = " at width " + std::to_string(width) + ", mean " + std::to_string(mean);
      const double lost = 1e-6 * std::abs(mean);
      // A single feature equals its mean: the result is the bias, and x has no gradient.
      if (width == 1) {
        EXPECT_AT_MOST(distance(y, want), 1e-5, "forward" + at);
        EXPECT_AT_MOST(rlt::test::largest(x.grad()), 1e-3, "gradient of x" + at);
      } else {
        EXPECT_AT_MOST(relative(y, want), 2e-6 + lost, "forward" + at);
        EXPECT_AT_MOST(relative(x.grad(), sum.grad()), 1e-5 + lost, "gradient of x" + at);
      }
      EXPECT(same_bits(x.grad(), residual.grad()));
      EXPECT(same_bits(kept_sum, x_values.add(r_values)));
      EXPECT_AT_MOST(distance(kept_mean, sum.mean(1)), 1e-6 + lost, "mean" + at);
      EXPECT_EQUAL(kept_rstd.sizes(), c10::IntArrayRef({rows}));
      EXPECT(!kept_sum.requires_grad() && !kept_mean.requires_grad() && !kept_rstd.requires_grad());
    }
  }
}

TEST(add_layer_norm_of_a_constant_row_is_the_bias) {
  Random random(32);
  for (const int64_t width : {1, 15, 16, 384}) {
    const at::Tensor x = at::zeros({2, width}).fill_(3), bias = random.normal({width});
    const at::Tensor y =
        std::get<0>(rlt::add_layer_norm(x, at::zeros({2, width}), random.normal({width}), bias, kEps));
    EXPECT_AT_MOST(distance(y.select(0, 1), bias), 0, "width " + std::to_string(width));
  }
}

TEST(add_layer_norm_of_one_tensor_twice_doubles_its_gradient) {
  Random random(33);
  const at::Tensor values = random.normal({3, 20}), weight = random.normal({20}), bias = random.normal({20});
  const at::Tensor x = leaf(values), want = leaf(values, at::kDouble);
  const at::Tensor weights = random.normal({3, 20});
  std::get<0>(rlt::add_layer_norm(x, x, weight, bias, kEps)).backward(weights);
  at::layer_norm(want.add(want), {20}, weight.to(at::kDouble), bias.to(at::kDouble), kEps)
      .backward(weights.to(at::kDouble));
  EXPECT_AT_MOST(relative(x.grad(), want.grad()), 1e-5, "gradient");
}

TEST(add_layer_norm_refuses_what_does_not_fit) {
  Random random(34);
  const at::Tensor x = random.normal({3, 8}), w = random.normal({8}), b = random.normal({8});
  EXPECT_THROWS("do not fit", rlt::add_layer_norm(x, x.narrow(0, 0, 2), w, b, kEps));
  EXPECT_THROWS("do not fit", rlt::add_layer_norm(x, x, random.normal({7}), b, kEps));
  EXPECT_THROWS("do not fit", rlt::add_layer_norm(x, x, w, random.normal({9}), kEps));
  EXPECT_THROWS("dense", rlt::add_layer_norm(x, random.normal({8, 3}).t(), w, b, kEps));
  EXPECT_THROWS("dense", rlt::add_layer_norm(x.to(at::kDouble), x, w, b, kEps));
  EXPECT_THROWS("dense", rlt::add_layer_norm(x, x, random.normal({16}).slice(0, 0, 16, 2), b, kEps));
  const at::Tensor mean = random.normal({3}), rstd = random.normal({3});
  EXPECT_THROWS("do not fit", rlt::add_layer_norm_backward(x, x, random.normal({7}), mean, rstd));
  EXPECT_THROWS("do not fit", rlt::add_layer_norm_backward(x, x, w, random.normal({2}), rstd));
  EXPECT_THROWS("dense", rlt::add_layer_norm_backward(x, random.normal({8, 3}).t(), w, mean, rstd));
}

TEST(segment_mean_is_the_mean_of_each_sequence) {
  Random random(35);
  const std::vector<int64_t> lengths{3, 1, 0, 40, 0, 7};
  for (const int64_t width : {1, 15, 384}) {
    const at::Tensor values = random.normal({total(lengths), width});
    const at::Tensor x = leaf(values), x_ref = leaf(values, at::kDouble);
    std::vector<at::Tensor> means;
    int64_t first = 0;
    for (const int64_t n : lengths) {
      means.push_back(n == 0 ? at::zeros({1, width}, at::kDouble)
                             : x_ref.narrow(0, first, n).mean(c10::IntArrayRef{0}, true));
      first += n;
    }
    const at::Tensor y = rlt::segment_mean(x, borders(lengths)), want = at::cat(means, 0);
    EXPECT_AT_MOST(distance(y, want), 1e-6, "forward");
    const at::Tensor weights = random.normal(y.sizes());
    y.backward(weights);
    want.backward(weights.to(at::kDouble));
    EXPECT_AT_MOST(distance(x.grad(), x_ref.grad()), 1e-6, "gradient");
  }
}

// The gradient that sum() passes back is expanded: all its elements share one address.
TEST(norm_and_pool_take_expanded_gradients) {
  Random random(37);
  const at::Tensor weight = random.normal({20}), bias = random.normal({20});
  const auto check = [&](const at::Tensor& values, const auto& f) {
    const at::Tensor expanded = leaf(values), dense = leaf(values);
    f(expanded).sum().backward();
    const at::Tensor y = f(dense);
    y.backward(at::ones(y.sizes()));
    EXPECT(same_bits(expanded.grad(), dense.grad()));
  };
  const at::Tensor x = random.normal({7, 20});
  check(x, [&](const at::Tensor& t) { return std::get<0>(rlt::add_layer_norm(t, t, weight, bias, kEps)); });
  check(x, [&](const at::Tensor& t) { return rlt::segment_mean(t, borders({3, 0, 4})); });
  const at::Tensor one = at::ones({1, 1});
  EXPECT_THROWS("dense", rlt::segment_mean_backward(one.expand({3, 20}), borders({3, 0, 4})));
  EXPECT_THROWS("dense", rlt::add_layer_norm_backward(one.expand({7, 20}), x, weight, bias.narrow(0, 0, 7),
                                                      bias.narrow(0, 0, 7)));
  // One mean and one rstd, expanded over the rows.
  const at::Tensor shared = at::ones({1}).expand({7});
  EXPECT_THROWS("dense", rlt::add_layer_norm_backward(x, x, weight, shared, shared));
}

TEST(segment_mean_by_hand) {
  const at::Tensor x = vector_of<float>({1, 2, 3, 4, 5, 6}).view({3, 2});
  const at::Tensor y = rlt::segment_mean(x, borders({1, 2}));
  EXPECT(same_bits(y, vector_of<float>({1, 2, 4, 5}).view({2, 2})));
  EXPECT_EQUAL(rlt::segment_mean(at::zeros({0, 2}), borders({})).size(0), 0);
}

TEST(segment_mean_refuses_what_does_not_fit) {
  Random random(36);
  const at::Tensor x = random.normal({3, 2});
  EXPECT_THROWS("run from 0 to 3", rlt::segment_mean(x, borders({2})));
  EXPECT_THROWS("int32", rlt::segment_mean(x, borders({3}).to(at::kLong)));
  EXPECT_THROWS("dense", rlt::segment_mean(x.t(), borders({2})));
  EXPECT_THROWS("for 2 sequences", rlt::segment_mean_backward(x, borders({2, 1})));
  EXPECT_THROWS("int32", rlt::segment_mean_backward(x, borders({1, 1, 1}).to(at::kLong)));
  EXPECT_THROWS("falls", rlt::segment_mean_backward(x, vector_of<int32_t>({0, 5, 1, 6})));
}

}  // namespace
