// Groups of linear layers: against composite float64 operators, and forward passes with groups against passes
// without.
#include "nn/linear_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "check.h"
#include "transformer_fixture.h"

namespace {

using rlt::nn::Linear;
using rlt::nn::LinearGroup;
using rlt::test::all_shapes;
using rlt::test::borders;
using rlt::test::held_by;
using rlt::test::linear_layers;
using rlt::test::Random;
using rlt::test::random_weights;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::Shape;

Linear layer(Random& random, int64_t in, int64_t out, int64_t rank, bool bias,
             at::ScalarType type = at::kFloat) {
  Linear made;
  made.weight = random.normal({out, in}, 0.2).to(type);
  if (bias) made.bias = random.normal({out});
  made.scale = 0.6;
  if (rank == 0) return made;
  made.a = random.normal({rank, in}, 0.2);
  made.b = random.normal({out, rank}, 0.2);
  return made;
}

at::Tensor plain(const Linear& l, const at::Tensor& x, bool adapted) {
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  at::Tensor y = at::linear(wide(x), wide(l.weight));
  if (l.bias.defined()) y = y.add(wide(l.bias));
  if (!adapted || !l.a.defined()) return y;
  return y.add(at::linear(at::linear(wide(x), wide(l.a)), wide(l.b)).mul(l.scale));
}

// Outputs that do not fill their panels, different or missing ranks, one or many rows.
TEST(group_equals_its_layers_one_by_one) {
  Random random(301);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t in : {5, 64, 387}) {
      const Linear q = layer(random, in, 48, 3, true, type), k = layer(random, in, 20, 0, false, type),
                   v = layer(random, in, 7, 17, true, type);
      const std::vector<const Linear*> layers{&q, &k, &v};
      const LinearGroup group(layers);
      for (const int64_t rows : {1, 2, 6, 16, 131}) {
        // Strided rows: a slice of a wider tensor.
        const at::Tensor x = held_by(type, random.normal({rows, in + 3})).narrow(1, 1, in);
        for (const bool adapted : {false, true}) {
          const at::Tensor y = group.forward(x, adapted);
          for (size_t i = 0; i < layers.size(); ++i) {
            EXPECT_AT_MOST(relative(group.part(y, i), plain(*layers[i], x, adapted)), 2e-6,
                           "part " + std::to_string(i) + " of " + std::to_string(rows) + " rows");
          }
        }
      }
    }
  }
}

TEST(group_of_a_gate_equals_its_layers) {
  Random random(302);
  for (const int64_t inner : {32, 27}) {
    const Linear gate = layer(random, 24, inner, 4, true), up = layer(random, 24, inner, 2, true);
    Linear both;
    both.weight = at::cat({gate.weight, up.weight}, 0);
    both.bias = at::cat({gate.bias, up.bias}, 0);
    const at::Tensor x = random.normal({9, 24});
    const LinearGroup apart({&gate, &up}, true), fused({&both}, true);
    const auto want = [&](bool adapted) {
      return at::silu(plain(gate, x, adapted)).mul(plain(up, x, adapted));
    };
    EXPECT_AT_MOST(relative(apart.forward(x, true, RLT_ACT_SILU), want(true)), 3e-6, "gate and up");
    EXPECT_AT_MOST(relative(apart.forward(x, false, RLT_ACT_SILU), want(false)), 3e-6, "without adapters");
    EXPECT_AT_MOST(relative(fused.forward(x, false, RLT_ACT_SILU), want(false)), 3e-6, "one layer of both");
    const LinearGroup alone({&gate});
    EXPECT_AT_MOST(relative(alone.forward(x, true, RLT_ACT_GELU), at::gelu(plain(gate, x, true))), 3e-6,
                   "an activation");
  }
}

TEST(group_adds_the_residual) {
  Random random(303);
  for (const int64_t out : {32, 21}) {
    const Linear o = layer(random, 40, out, 5, true);
    const at::Tensor x = random.normal({13, 40}), residual = random.normal({out, 13}).t();
    EXPECT_AT_MOST(
        relative(LinearGroup({&o}).forward_add(x, true, residual), plain(o, x, true).add(residual)), 2e-6,
        std::to_string(out) + " outputs");
  }
}

// Batches small enough for one thread and large enough for two give a row the same bits.
TEST(group_gives_a_row_the_same_bits_in_any_batch) {
  Random random(304);
  const Linear l = layer(random, 384, 1536, 8, true);
  const LinearGroup group({&l});
  const at::Tensor x = random.normal({200, 384}), all = group.forward(x, true, RLT_ACT_GELU);
  for (const int64_t first : {0, 1, 77, 199}) {
    for (const int64_t rows : {1, 5, 16, 100}) {
      if (first + rows > 200) continue;
      EXPECT(
          same_bits(group.forward(x.narrow(0, first, rows), true, RLT_ACT_GELU), all.narrow(0, first, rows)));
    }
  }
}

TEST(group_sees_changed_weights_and_adapters) {
  Random random(305);
  Linear l = layer(random, 16, 16, 2, true);
  const LinearGroup group({&l});
  const at::Tensor x = random.normal({3, 16});
  const auto check = [&](const char* what) {
    EXPECT_AT_MOST(relative(group.forward(x, true), plain(l, x, true)), 2e-6, what);
  };
  check("at first");
  l.weight.mul_(2);
  check("the weight in place");
  l.weight = random.normal({16, 16});
  check("another weight");
  l.bias.add_(1);
  check("the bias");
  l.b.mul_(3);
  check("b in place");
  l.a = random.normal({2, 16});
  check("another a");
  // An optimiser may write to a tensor without changing its version counter.
  l.a.requires_grad_(true);
  check("a trained");
  l.a.mutable_data_ptr<float>()[5] += 1;
  check("a written to");
}

TEST(group_refuses_what_does_not_fit) {
  Random random(306);
  const Linear l = layer(random, 8, 16, 2, true);
  const LinearGroup group({&l});
  EXPECT_THROWS("rows of 8", group.forward(random.normal({2, 9}), true));
  EXPECT_THROWS("rows of 8", group.forward(random.normal({8}), true));
  EXPECT_THROWS("rows of 8", group.forward(random.normal({2, 8}).to(at::kDouble), true));
}

// A frozen model runs its layers in groups, a trained one runs them separately; with and without gradients.
TEST(transformer_that_is_frozen_equals_one_that_is_trained) {
  for (Shape& s : all_shapes()) {
    Random random(307);
    const rlt::nn::Weights weights = random_weights(random, s);
    rlt::nn::Transformer frozen(s.config(), weights), trained(s.config(), weights);
    for (int64_t n = 0; n < rlt::test::stored_layers(s.c); ++n) {
      for (const rlt::test::Layer& l : linear_layers(s.c, n)) {
        if (l.name == "layers.1.o") continue;
        const at::Tensor a = random.normal({3, l.in}, 0.3), b = random.normal({l.out, 3}, 0.3);
        frozen.adapt(l.name, a, b, 0.7);
        trained.adapt(l.name, rlt::test::leaf(a), rlt::test::leaf(b), 0.7);
      }
    }
    std::vector<int64_t> positions;
    for (const int64_t n : {5, 1, 17}) {
      for (int64_t i = 0; i < n; ++i) positions.push_back(i);
    }
    rlt::nn::Batch batch{random.ints(23, s.c.vocab_size),
                         rlt::test::vector_of(positions),
                         borders({5, 1, 17}),
                         {},
                         {},
                         {},
                         {}};
    rlt::nn::AdapterPass pass;
    for (const bool on : {true, false}) {
      pass.on = on;
      for (const bool some : {false, true}) {
        batch.rows = some ? rlt::test::vector_of<int64_t>({4, 22, 6}) : at::Tensor();
        const at::Tensor want = trained.forward(batch, pass), with = frozen.forward(batch, pass);
        EXPECT_AT_MOST(relative(with, want), 1e-5, s.name);
        EXPECT_EQUAL(want.requires_grad(), on);
        EXPECT(!with.requires_grad());
        const at::AutoGradMode off(false);
        EXPECT(same_bits(trained.forward(batch, pass), want));
        EXPECT(same_bits(frozen.forward(batch, pass), with));
      }
    }
  }
}

}  // namespace
