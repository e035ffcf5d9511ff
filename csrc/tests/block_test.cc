// RMS norm, rotary embeddings and gated activations against float64 composites.
#include <ATen/ops/cat.h>

#include <string>

#include "check.h"
#include "ops/block.h"
#include "rltrain.h"
#include "support.h"

namespace {

using rlt::test::distance;
using rlt::test::leaf;
using rlt::test::Random;
using rlt::test::relative;

TEST(rms_norm_equals_its_formula) {
  Random random(81);
  for (const int64_t width : {1, 7, 8, 9, 64, 577}) {
    for (const bool plus_one : {false, true}) {
      const at::Tensor values = random.normal({50, width}, 2), weights = random.normal({width}, 0.5);
      const at::Tensor x = leaf(values), w = leaf(weights), x64 = leaf(values, at::kDouble),
                       w64 = leaf(weights, at::kDouble);
      const at::Tensor y = std::get<0>(rlt::rms_norm(x, w, 1e-5, plus_one));
      const at::Tensor want =
          x64.mul(x64.square().mean(1, true).add(1e-5).rsqrt()).mul(plus_one ? w64.add(1) : w64);
      const at::Tensor upstream = random.normal(values.sizes());
      y.backward(upstream);
      want.backward(upstream.to(at::kDouble));
      const std::string at = " at width " + std::to_string(width) + (plus_one ? ", plus one" : "");
      EXPECT_AT_MOST(relative(y, want), 2e-6, "forward" + at);
      // With one feature the result is ±1 for any input, so its gradient is only rounding error.
      if (width > 1) EXPECT_AT_MOST(relative(x.grad(), x64.grad()), 1e-5, "gradient of x" + at);
      EXPECT_AT_MOST(relative(w.grad(), w64.grad()), 1e-5, "gradient of weight" + at);
    }
  }
}

TEST(rms_norm_of_a_frozen_weight_or_input) {
  Random random(82);
  const at::Tensor values = random.normal({5, 8}), x = leaf(values), w = leaf(random.normal({8}));
  std::get<0>(rlt::rms_norm(x, w.detach(), 1e-5, false)).sum().backward();
  EXPECT(x.grad().defined() && !w.grad().defined());
  std::get<0>(rlt::rms_norm(values, w, 1e-5, false)).sum().backward();
  EXPECT(w.grad().defined());
  EXPECT_THROWS("does not fit", rlt::rms_norm(values, random.normal({7}), 1e-5, false));
  EXPECT_THROWS("dense rows", rlt::rms_norm(random.normal({8, 5}).t(), random.normal({8}), 1e-5, false));
}

TEST(rope_turns_pairs_of_halves) {
  Random random(83);
  const int64_t rows = 9, heads = 3, d = 10;
  for (const int64_t half : {0, 2, 5}) {
    const at::Tensor values = random.normal({rows, heads * d}), angles = random.normal({rows, half}, 3);
    const at::Tensor cos = angles.cos().mul(1.5), sin = angles.sin().mul(1.5);
    const at::Tensor x = leaf(values), x64 = leaf(values, at::kDouble);
    const at::Tensor y = rlt::rope(x, cos, sin, d, false);
    std::vector<at::Tensor> columns;
    for (int64_t h = 0; h < heads; ++h) {
      const auto part = [&](int64_t from, int64_t n) { return x64.narrow(1, h * d + from, n); };
      columns.push_back(part(0, half).mul(cos).sub(part(half, half).mul(sin)));
      columns.push_back(part(half, half).mul(cos).add(part(0, half).mul(sin)));
      columns.push_back(part(2 * half, d - 2 * half));
    }
    const at::Tensor want = at::cat(columns, 1), upstream = random.normal(values.sizes());
    y.backward(upstream);
    want.backward(upstream.to(at::kDouble));
    const std::string at = " with " + std::to_string(2 * half) + " features";
    EXPECT_AT_MOST(distance(y, want), 2e-6, "forward" + at);
    EXPECT_AT_MOST(distance(x.grad(), x64.grad()), 2e-6, "gradient" + at);
    EXPECT_AT_MOST(distance(rlt::rope(y.detach().div(2.25), cos, sin, d, true).narrow(1, 0, 2 * half),
                            values.narrow(1, 0, 2 * half)),
                   2e-6, "there and back" + at);
  }
  const at::Tensor x = random.normal({4, 12}), cos = random.normal({4, 3});
  EXPECT_THROWS("heads of 5", rlt::rope(x, cos, cos, 5, false));
  EXPECT_THROWS("do not fit", rlt::rope(x, cos, cos, 4, false));
  EXPECT_THROWS("do not fit", rlt::rope(x, cos, random.normal({4, 2}), 6, false));
}

TEST(gated_act_equals_activation_times_up) {
  Random random(84);
  for (const int64_t activation : {RLT_ACT_SILU, RLT_ACT_GELU, RLT_ACT_GELU_TANH, RLT_ACT_RELU}) {
    for (const double spread : {0.01, 1.0, 30.0}) {
      const at::Tensor g = random.normal({23, 37}, spread), u = random.normal({23, 37});
      // Gate and up are halves of one fused matrix, so their rows are strided.
      const at::Tensor fused = leaf(at::cat({g, u}, 1));
      const auto parts = fused.split(37, 1);
      const at::Tensor gate = leaf(g, at::kDouble), up = leaf(u, at::kDouble);
      const at::Tensor y = rlt::gated_act(parts[0], parts[1], activation),
                       want = rlt::test::plain_activation(activation, gate).mul(up),
                       upstream = random.normal(y.sizes());
      y.backward(upstream);
      want.backward(upstream.to(at::kDouble));
      const std::string at =
          " of activation " + std::to_string(activation) + " at spread " + std::to_string(spread);
      EXPECT_AT_MOST(relative(y, want), 2e-6, "forward" + at);
      EXPECT_AT_MOST(relative(fused.grad().narrow(1, 0, 37), gate.grad()), 2e-6, "gradient of gate" + at);
      EXPECT_AT_MOST(relative(fused.grad().narrow(1, 37, 37), up.grad()), 2e-6, "gradient of up" + at);
    }
  }
  EXPECT_THROWS("unknown activation", rlt::gated_act(random.normal({2, 3}), random.normal({2, 3}), 4));
  EXPECT_THROWS("do not fit", rlt::gated_act(random.normal({2, 3}), random.normal({2, 4}), 0));
}

}  // namespace
