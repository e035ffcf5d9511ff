#include "ops/linear.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <string>

#include "check.h"
#include "nn/linear_group.h"
#include "ops/widen.h"
#include "support.h"

namespace {

using rlt::test::distance;
using rlt::test::held_by;
using rlt::test::leaf;
using rlt::test::Random;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::vector_of;

at::Tensor reference_linear(const at::Tensor& x, const at::Tensor& w, const rlt::OptionalTensor& bias) {
  return at::linear(x, w.to(at::kDouble),
                    bias ? rlt::OptionalTensor(bias->to(at::kDouble)) : rlt::OptionalTensor());
}

TEST(linear_equals_aten_linear) {
  struct Case {
    int64_t rows, in, out;
  };
  Random random(11);
  for (const Case c : {Case{1, 1, 1}, Case{7, 13, 5}, Case{64, 384, 384}, Case{33, 384, 1536},
                       Case{100, 1536, 384}, Case{1, 384, 3}, Case{0, 384, 16}}) {
    for (const bool with_bias : {true, false}) {
      const at::Tensor values = random.normal({c.rows, c.in});
      const at::Tensor w = random.normal({c.out, c.in}, 1 / std::sqrt(static_cast<double>(c.in)));
      const rlt::OptionalTensor bias =
          with_bias ? rlt::OptionalTensor(random.normal({c.out})) : rlt::OptionalTensor();
      const at::Tensor weights = random.normal({c.rows, c.out});
      const at::Tensor x = leaf(values), x_ref = leaf(values, at::kDouble);
      const at::Tensor y = rlt::linear(x, w, bias), want = reference_linear(x_ref, w, bias);
      const std::string at =
          " at " + std::to_string(c.rows) + "x" + std::to_string(c.in) + "x" + std::to_string(c.out);
      EXPECT_AT_MOST(distance(y, want), 1e-5, "forward" + at);
      y.backward(weights);
      want.backward(weights.to(at::kDouble));
      EXPECT_AT_MOST(distance(x.grad(), x_ref.grad()), 1e-5 * (1 + rlt::test::largest(x_ref.grad())),
                     "gradient of x" + at);
    }
  }
}

TEST(linear_of_a_strided_input) {
  Random random(12);
  const at::Tensor values = random.normal({20, 9}), w = random.normal({4, 20}), bias = random.normal({4});
  const at::Tensor x = leaf(values), x_ref = leaf(values, at::kDouble);
  const at::Tensor y = rlt::linear(x.t(), w, bias), want = reference_linear(x_ref.t(), w, bias);
  EXPECT_AT_MOST(distance(y, want), 1e-5, "forward");
  // The gradient of sum() is a broadcast scalar, so it is strided as well.
  y.sum().backward();
  want.sum().backward();
  EXPECT_AT_MOST(relative(x.grad(), x_ref.grad()), 1e-5, "gradient of x");
}

TEST(linear_trains_its_weight_where_asked) {
  Random random(13);
  const at::Tensor x_values = random.normal({30, 7}), weights = random.normal({30, 5});
  const at::Tensor w_values = random.normal({5, 7}), bias_values = random.normal({5});
  for (int asked = 0; asked < 8; ++asked) {
    const bool train_x = asked & 1, train_w = asked & 2, train_bias = asked & 4;
    const auto make = [&](const at::Tensor& t, bool train, at::ScalarType type) {
      return leaf(t, type).requires_grad_(train);
    };
    const at::Tensor x = make(x_values, train_x, at::kFloat), x_ref = make(x_values, train_x, at::kDouble);
    const at::Tensor w = make(w_values, train_w, at::kFloat), w_ref = make(w_values, train_w, at::kDouble);
    const at::Tensor bias = make(bias_values, train_bias, at::kFloat),
                     bias_ref = make(bias_values, train_bias, at::kDouble);
    const at::Tensor y = rlt::linear(x, w, bias), want = at::linear(x_ref, w_ref, bias_ref);
    EXPECT_EQUAL(y.requires_grad(), asked != 0);
    if (asked == 0) continue;
    y.backward(weights);
    want.backward(weights.to(at::kDouble));
    const std::string at = " where " + std::to_string(asked) + " is asked";
    const auto compare = [&](const at::Tensor& got, const at::Tensor& ref, bool trained, const char* what) {
      EXPECT_EQUAL(got.grad().defined(), trained);
      if (trained) EXPECT_AT_MOST(relative(got.grad(), ref.grad()), 1e-5, what + at);
    };
    compare(x, x_ref, train_x, "gradient of x");
    compare(w, w_ref, train_w, "gradient of w");
    compare(bias, bias_ref, train_bias, "gradient of the bias");
  }
}

TEST(linear_without_a_bias_trains_its_weight) {
  Random random(23);
  const at::Tensor w = leaf(random.normal({5, 7})), x = random.normal({3, 7});
  rlt::linear(x, w, std::nullopt).sum().backward();
  EXPECT_AT_MOST(distance(w.grad(), x.sum(0).expand({5, 7})), 1e-5, "gradient of w");
}

TEST(linear_refuses_what_does_not_fit) {
  Random random(14);
  const at::Tensor x = random.normal({3, 4}), w = random.normal({2, 4}), bias = random.normal({2});
  EXPECT_THROWS("do not fit", rlt::linear(x, w.t(), bias));
  EXPECT_THROWS("do not fit", rlt::linear(x, w, random.normal({3})));
  EXPECT_THROWS("do not fit", rlt::linear(x.select(0, 0), w, bias));
  EXPECT_THROWS("float32", rlt::linear(x.to(at::kDouble), w, bias));
  EXPECT_THROWS("float32", rlt::linear(x, w.to(at::kDouble), bias));
  EXPECT_THROWS("float32", rlt::linear(x, w, bias.to(at::kHalf)));
  EXPECT_THROWS("must be dense", rlt::linear(x, random.normal({4, 2}).to(at::kHalf).t(), bias));
  EXPECT_THROWS("trained weight must be float32", rlt::linear(x, leaf(w, at::kHalf), bias));
}

// One case is wide enough to widen its weight in several parts.
TEST(linear_of_weights_of_two_bytes) {
  struct Case {
    int64_t rows, in, out;
  };
  Random random(25);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const Case c : {Case{1, 1, 1}, Case{7, 13, 5}, Case{33, 384, 96}, Case{3, 1100, 4100}, Case{0, 8, 4},
                         Case{5, 8, 0}}) {
      // Processors with bfloat16 products round x, and in backward the gradient.
      const at::Tensor values = held_by(type, random.normal({c.rows, c.in})), bias = random.normal({c.out});
      const at::Tensor w = random.normal({c.out, c.in}, 1 / std::sqrt(static_cast<double>(c.in))).to(type);
      const at::Tensor weights = held_by(type, random.normal({c.rows, c.out}));
      const at::Tensor x = leaf(values), x_ref = leaf(values, at::kDouble);
      const at::Tensor y = rlt::linear(x, w, bias), want = reference_linear(x_ref, w, bias);
      const std::string at = std::string(" of ") + c10::toString(type) + " at " + std::to_string(c.in);
      EXPECT_AT_MOST(distance(y, want), 1e-5, "forward" + at);
      y.backward(weights);
      want.backward(weights.to(at::kDouble));
      EXPECT_AT_MOST(distance(x.grad(), x_ref.grad()), 1e-5 * (1 + rlt::test::largest(x_ref.grad())),
                     "gradient of x" + at);
    }
  }
}

// Bit for bit the result for the rounded input, and within bfloat16's precision of the exact product.
TEST(linear_rounds_to_bfloat16_where_the_processor_multiplies_it) {
  Random random(27);
  const at::Tensor x = random.normal({40, 64}), grad = random.normal({40, 37}),
                   w = random.normal({37, 64}, 0.125).to(at::kBFloat16);
  const at::Tensor y = rlt::linear(x, w, std::nullopt), g = rlt::linear_input_grad(grad, w);
  const bool rounds = rlt::test::rounds(at::kBFloat16);
  EXPECT_EQUAL(same_bits(y, rlt::linear(held_by(at::kBFloat16, x), w, std::nullopt)), rounds);
  EXPECT_EQUAL(same_bits(g, rlt::linear_input_grad(held_by(at::kBFloat16, grad), w)), rounds);
  const double limit = rounds ? 5e-3 : 1e-6;
  EXPECT_AT_MOST(relative(y, reference_linear(x.to(at::kDouble), w, {})), limit, "forward");
  EXPECT_AT_MOST(relative(g, at::matmul(grad.to(at::kDouble), w.to(at::kDouble))), limit, "gradient of x");
}

// The engine's packed weights do so too, therefore an odd number of inputs is no exception.
TEST(linear_of_an_odd_number_of_inputs_rounds_too) {
  if (!rlt::test::rounds(at::kBFloat16)) return;
  Random random(28);
  for (const int64_t in : {1, 63, 387}) {
    const at::Tensor x = random.normal({40, in}), grad = random.normal({40, 37}),
                     w = random.normal({37, in}, 0.125).to(at::kBFloat16);
    EXPECT(
        same_bits(rlt::linear(x, w, std::nullopt), rlt::linear(held_by(at::kBFloat16, x), w, std::nullopt)));
    EXPECT(
        same_bits(rlt::linear_input_grad(grad, w), rlt::linear_input_grad(held_by(at::kBFloat16, grad), w)));
    rlt::nn::Linear layer;
    layer.weight = w;
    EXPECT_AT_MOST(
        relative(rlt::linear(x, w, std::nullopt), rlt::nn::LinearGroup({&layer}).forward(x, false)), 1e-6,
        "engine and training, " + std::to_string(in));
  }
}

at::Tensor widened(const at::Tensor& w) {
  at::Tensor out = at::empty(w.sizes(), at::kFloat);
  rlt::float_rows(w, 0, w.size(0), out.mutable_data_ptr<float>());
  return out;
}

TEST(widening_keeps_every_value) {
  // All 65536 bit patterns, including ±0, subnormals, infinities and NaN.
  std::vector<int16_t> patterns;
  for (int i = -32768; i < 32768; ++i) patterns.push_back(static_cast<int16_t>(i));
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor w = vector_of(patterns).view(type).view({-1, 1});
    const at::Tensor got = widened(w), want = w.to(at::kFloat);
    EXPECT(same_bits(got.nan_to_num(0.5), want.nan_to_num(0.5)));
    EXPECT(got.isnan().equal(want.isnan()));
  }
}

struct Lora {
  at::Tensor x, w, bias, a, b, keys;
  double scale = 0.7;
};

Lora random_lora(Random& random, int64_t rows, int64_t in, int64_t out, int64_t r) {
  Lora l;
  l.x = random.normal({rows, in});
  l.w = random.normal({out, in}, 1 / std::sqrt(static_cast<double>(in)));
  l.bias = random.normal({out});
  l.a = random.normal({r, in}, 1 / std::sqrt(static_cast<double>(in)));
  l.b = random.normal({out, r}, 0.5);
  l.keys = random.ints(rows, int64_t{1} << 60);
  return l;
}

at::Tensor lora(const Lora& l, const at::Tensor& x, const at::Tensor& a, const at::Tensor& b, double p,
                int64_t layer) {
  return std::get<0>(rlt::lora_linear(x, l.w, l.bias, a, b, l.scale, p, l.keys, layer));
}

// Reference from composite operators in float64. hash_dropout of ones gives the mask.
at::Tensor composed(const Lora& l, const at::Tensor& x, const at::Tensor& a, const at::Tensor& b, double p,
                    int64_t layer) {
  const at::Tensor mask = rlt::hash_dropout(at::ones(x.sizes(), at::kFloat), l.keys, layer, p);
  const at::Tensor low = at::linear(x.mul(mask.to(at::kDouble)), a);
  return reference_linear(x, l.w, l.bias).add(at::linear(low, b), l.scale);
}

void compare_lora(const Lora& l, double p, int64_t layer, bool strided, const std::string& at) {
  // The transpose of a leaf is an x that is not dense.
  const at::Tensor values = strided ? l.x.t().contiguous() : l.x;
  const at::Tensor x = leaf(values), x_ref = leaf(values, at::kDouble);
  const at::Tensor a = leaf(l.a), a_ref = leaf(l.a, at::kDouble), b = leaf(l.b),
                   b_ref = leaf(l.b, at::kDouble);
  const at::Tensor y = lora(l, strided ? x.t() : x, a, b, p, layer);
  const at::Tensor want = composed(l, strided ? x_ref.t() : x_ref, a_ref, b_ref, p, layer);
  EXPECT_AT_MOST(distance(y, want), 1e-5 * (1 + rlt::test::largest(want)), "forward" + at);
  const at::Tensor weights = held_by(l.w.scalar_type(), Random(99).normal(y.sizes()));
  y.backward(weights);
  want.backward(weights.to(at::kDouble));
  EXPECT_AT_MOST(relative(x.grad(), x_ref.grad()), 1e-5, "gradient of x" + at);
  EXPECT_AT_MOST(relative(a.grad(), a_ref.grad()), 1e-5, "gradient of a" + at);
  EXPECT_AT_MOST(relative(b.grad(), b_ref.grad()), 1e-5, "gradient of b" + at);
}

TEST(lora_linear_equals_its_composition) {
  struct Case {
    int64_t rows, in, out, r;
  };
  Random random(15);
  for (const Case c : {Case{1, 1, 1, 1}, Case{7, 13, 5, 3}, Case{50, 384, 384, 8}, Case{33, 384, 1536, 16},
                       Case{20, 1536, 384, 4}, Case{300, 48, 80, 20}, Case{211, 37, 29, 5}}) {
    const Lora l = random_lora(random, c.rows, c.in, c.out, c.r);
    for (const double p : {0.0, 0.1, 0.5, 0.9}) {
      const std::string at = " at " + std::to_string(c.rows) + "x" + std::to_string(c.in) + "x" +
                             std::to_string(c.out) + ", p " + std::to_string(p);
      // Dropout may drop the only feature; then there is nothing to compare.
      if (c.in == 1 && p > 0) continue;
      compare_lora(l, p, 3, false, at);
      compare_lora(l, p, 3, true, at + ", strided");
    }
  }
}

TEST(lora_linear_of_a_frozen_input) {
  Random random(16);
  const Lora l = random_lora(random, 12, 20, 6, 4);
  for (const double p : {0.0, 0.25}) {
    const at::Tensor a = leaf(l.a), b = leaf(l.b), a_ref = leaf(l.a, at::kDouble),
                     b_ref = leaf(l.b, at::kDouble);
    lora(l, l.x, a, b, p, 1).sum().backward();
    composed(l, l.x.to(at::kDouble), a_ref, b_ref, p, 1).sum().backward();
    EXPECT(!l.x.grad().defined());
    EXPECT_AT_MOST(relative(a.grad(), a_ref.grad()), 1e-5, "gradient of a");
    EXPECT_AT_MOST(relative(b.grad(), b_ref.grad()), 1e-5, "gradient of b");
  }
}

TEST(lora_linear_on_a_weight_of_two_bytes) {
  Random random(26);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    Lora l = random_lora(random, 12, 20, 6, 4);
    l.w = l.w.to(type);
    l.x = held_by(type, l.x);
    for (const double p : {0.0, 0.25})
      compare_lora(l, p, 2, false, std::string(" of ") + c10::toString(type));
  }
}

// W x + b + (s - 1) W x' + s scale B A x', of x' with dropout and s = m / ‖W + scale B A‖, as PEFT has it.
TEST(dora_equals_its_definition) {
  Random random(28);
  const Lora l = random_lora(random, 12, 20, 6, 4);
  const at::Tensor values = random.normal({6}), weights = random.normal({12, 6});
  for (const double p : {0.0, 0.25}) {
    rlt::nn::Linear layer;
    layer.weight = l.w, layer.bias = l.bias, layer.scale = l.scale, layer.index = 3;
    layer.a = leaf(l.a), layer.b = leaf(l.b), layer.magnitude = leaf(values);
    rlt::nn::AdapterPass pass;
    pass.on = true, pass.dropout = p, pass.row_keys = l.keys;
    const at::Tensor x = leaf(l.x), x_ref = leaf(l.x, at::kDouble), a = leaf(l.a, at::kDouble),
                     b = leaf(l.b, at::kDouble), m = leaf(values, at::kDouble), w = l.w.to(at::kDouble);
    const at::Tensor mask = rlt::hash_dropout(at::ones(x.sizes(), at::kFloat), l.keys, 3, p);
    const at::Tensor kept = x_ref.mul(mask.to(at::kDouble));
    const at::Tensor s = m.div(w.add(b.matmul(a), l.scale).norm(2, {1}).detach());
    const at::Tensor low = at::linear(at::linear(kept, a), b).mul(l.scale);
    const at::Tensor want =
        reference_linear(x_ref, l.w, l.bias).add(at::linear(kept, w).mul(s.sub(1))).add(low.mul(s));
    const at::Tensor y = layer.forward(x, pass);
    EXPECT_AT_MOST(relative(y, want), 1e-5, "forward");
    y.backward(weights);
    want.backward(weights.to(at::kDouble));
    EXPECT_AT_MOST(relative(x.grad(), x_ref.grad()), 1e-5, "gradient of x");
    EXPECT_AT_MOST(relative(layer.a.grad(), a.grad()), 1e-5, "gradient of a");
    EXPECT_AT_MOST(relative(layer.b.grad(), b.grad()), 1e-5, "gradient of b");
    EXPECT_AT_MOST(relative(layer.magnitude.grad(), m.grad()), 1e-5, "gradient of the magnitudes");
    pass.on = false;
    EXPECT_AT_MOST(relative(layer.forward(x, pass), reference_linear(x_ref, l.w, l.bias)), 1e-5,
                   "without it");
  }
}

TEST(lora_linear_trains_its_weight_where_asked) {
  Random random(24);
  const Lora l = random_lora(random, 12, 20, 6, 4);
  for (const double p : {0.0, 0.25}) {
    Lora got = l, want = l;
    got.w = leaf(l.w), got.bias = leaf(l.bias);
    want.w = leaf(l.w, at::kDouble), want.bias = leaf(l.bias, at::kDouble);
    const at::Tensor a = l.a.to(at::kDouble), b = l.b.to(at::kDouble), weights = random.normal({12, 6});
    lora(got, l.x, l.a, l.b, p, 1).backward(weights);
    composed(want, l.x.to(at::kDouble), a, b, p, 1).backward(weights.to(at::kDouble));
    EXPECT_AT_MOST(relative(got.w.grad(), want.w.grad()), 1e-5, "gradient of w");
    EXPECT_AT_MOST(relative(got.bias.grad(), want.bias.grad()), 1e-5, "gradient of the bias");
  }
}

// Layers of the same input: the second has no adapter, the last output is not used where `unused`.
void compare_linears(at::ScalarType type, bool unused) {
  Random random(27);
  constexpr int64_t kRows = 600, kIn = 48;
  const at::Tensor values = held_by(type, random.normal({kRows, kIn}));
  const at::Tensor x = leaf(values), x_ref = leaf(values);
  std::vector<rlt::AdaptedLinear> layers;
  std::vector<at::Tensor> params, wanted, weights;
  at::Tensor want, sum;
  for (const int64_t out : {32, 21, 80}) {
    Lora l = random_lora(random, 1, kIn, out, 5);
    l.w = l.w.to(type);
    const at::Tensor a = leaf(l.a), b = leaf(l.b), a_ref = leaf(l.a), b_ref = leaf(l.b);
    const bool adapted = out != 21;
    layers.push_back({l.w, l.bias, adapted ? a : at::Tensor(), adapted ? b : at::Tensor(), l.scale});
    weights.push_back(held_by(type, random.normal({kRows, out})));
    if (unused && out == 80) continue;
    const at::Tensor y =
        adapted ? std::get<0>(rlt::lora_linear(x_ref, l.w, l.bias, a_ref, b_ref, l.scale, 0, {}, 0))
                : rlt::linear(x_ref, l.w, l.bias);
    wanted.push_back(y.detach());
    want = want.defined() ? want.add(y.mul(weights.back()).sum()) : y.mul(weights.back()).sum();
    if (adapted) params.insert(params.end(), {a, a_ref, b, b_ref});
  }
  const std::vector<at::Tensor> got = rlt::linears(x, layers);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT(same_bits(got[i], wanted[i]));
    const at::Tensor y = got[i].mul(weights[i]).sum();
    sum = sum.defined() ? sum.add(y) : y;
  }
  sum.backward();
  want.backward();
  EXPECT_AT_MOST(relative(x.grad(), x_ref.grad()), 1e-5, "gradient of x");
  for (size_t i = 0; i < params.size(); i += 2) {
    EXPECT_AT_MOST(relative(params[i].grad(), params[i + 1].grad()), 1e-6, "gradient of an adapter");
  }
}

TEST(linears_equal_their_layers) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    compare_linears(type, false);
    compare_linears(type, true);
  }
}

TEST(lora_linear_accumulates_gradients) {
  Random random(17);
  const Lora l = random_lora(random, 10, 8, 6, 2);
  const at::Tensor a = leaf(l.a), b = leaf(l.b), once = leaf(l.a);
  lora(l, l.x, once, b, 0, 0).sum().backward();
  lora(l, l.x, a, b, 0, 0).sum().backward();
  lora(l, l.x, a, b, 0, 0).sum().backward();
  EXPECT_AT_MOST(relative(a.grad(), once.grad().mul(2)), 1e-6, "gradient of a");
}

TEST(linear_gradients_refuse_what_does_not_fit) {
  Random random(67);
  const at::Tensor x = random.normal({5, 6}), w = random.normal({4, 6}), a = random.normal({2, 6}),
                   b = random.normal({4, 2}), low = random.normal({5, 2}), grad = random.normal({5, 4});
  EXPECT_AT_MOST(relative(rlt::linear_input_grad(grad, w), grad.mm(w)), 1e-6, "of the input");
  EXPECT_AT_MOST(relative(rlt::linear_weight_grad(grad, x), grad.t().mm(x)), 1e-6, "of the weight");
  EXPECT_THROWS("does not fit", rlt::linear_input_grad(x, w));
  EXPECT_THROWS("does not fit", rlt::linear_input_grad(grad.narrow(0, 0, 1).expand({5, 4}), w));
  EXPECT_THROWS("does not fit", rlt::linear_weight_grad(grad, x.narrow(0, 0, 4)));
  const auto grads = [&](const at::Tensor& g, const at::Tensor& u) {
    return rlt::lora_grads(g, x, w, a, b, u, 0.5, 0, std::nullopt, 0, false);
  };
  EXPECT(!std::get<0>(grads(grad, low)).defined());
  EXPECT_AT_MOST(relative(std::get<2>(grads(grad, low)), grad.t().mm(low).mul(0.5)), 1e-6, "of B");
  EXPECT_THROWS("does not fit", grads(grad.narrow(0, 0, 4), low));
  EXPECT_THROWS("do not fit", grads(grad, low.narrow(0, 0, 4)));
}

TEST(lora_linear_with_b_of_zero_is_the_base) {
  Random random(18);
  const Lora l = random_lora(random, 10, 8, 6, 2);
  const at::Tensor zero = at::empty({6, 2}, at::kFloat).zero_();
  EXPECT_AT_MOST(distance(lora(l, l.x, l.a, zero, 0.5, 0), rlt::linear(l.x, l.w, l.bias)), 0, "forward");
}

TEST(lora_linear_refuses_what_does_not_fit) {
  Random random(19);
  const Lora l = random_lora(random, 10, 8, 6, 2);
  const auto call = [&](const at::Tensor& a, const at::Tensor& b, double p, const rlt::OptionalTensor& keys) {
    return rlt::lora_linear(l.x, l.w, l.bias, a, b, 1, p, keys, 0);
  };
  EXPECT_THROWS("do not fit", call(l.a.t(), l.b, 0, std::nullopt));
  EXPECT_THROWS("do not fit", call(l.a, l.b.t(), 0, std::nullopt));
  EXPECT_THROWS("do not fit", call(random.normal({3, 8}), l.b, 0, std::nullopt));
  EXPECT_THROWS("row_keys", call(l.a, l.b, 0.5, std::nullopt));
  EXPECT_THROWS("row_keys", call(l.a, l.b, 0.5, l.keys.narrow(0, 0, 9)));
  EXPECT_THROWS("row_keys", call(l.a, l.b, 0.5, l.keys.to(at::kInt)));
  EXPECT_THROWS("[0, 1)", call(l.a, l.b, 1, l.keys));
  EXPECT_THROWS("[0, 1)", call(l.a, l.b, -0.5, l.keys));
  EXPECT_THROWS("[0, 1)", call(l.a, l.b, NAN, l.keys));
}

// ---- hash_dropout ----

at::Tensor mask(const std::vector<int64_t>& keys, int64_t features, int64_t layer, double p) {
  const auto rows = static_cast<int64_t>(keys.size());
  return rlt::hash_dropout(at::ones({rows, features}, at::kFloat), vector_of(keys), layer, p);
}

double share_kept(const at::Tensor& m) { return m.ne(0).to(at::kDouble).mean().item<double>(); }

// Fraction of the features that both masks keep or both drop.
double agreement(const at::Tensor& a, const at::Tensor& b) {
  return a.eq(b).to(at::kDouble).mean().item<double>();
}

TEST(hash_dropout_keeps_its_share_and_expectation) {
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < 600; ++i) keys.push_back(i);
  for (const double p : {0.01, 0.05, 0.1, 0.3, 0.5, 0.75, 0.95}) {
    for (const int64_t layer : {0, 1, 35}) {
      const at::Tensor m = mask(keys, 384, layer, p);
      const double sigma = std::sqrt(p * (1 - p) / static_cast<double>(m.numel()));
      const std::string at = " at p " + std::to_string(p) + ", layer " + std::to_string(layer);
      EXPECT_AT_MOST(std::abs(share_kept(m) - (1 - p)), 4 * sigma, "share kept" + at);
      EXPECT_AT_MOST(std::abs(m.mean().item<double>() - 1), 4 * sigma / (1 - p), "mean of ones" + at);
      const at::Tensor kept = m.masked_select(m.ne(0));
      EXPECT_AT_MOST(distance(kept, at::ones(kept.sizes(), at::kFloat).div(1 - p)), 1e-5, "value" + at);
    }
  }
}

TEST(hash_dropout_is_even_over_features_and_rows) {
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < 2000; ++i) keys.push_back(i << 20 | 7);  // sample and token in one key
  const at::Tensor kept = mask(keys, 2000, 5, 0.3).ne(0).to(at::kDouble);
  const double sigma = std::sqrt(0.3 * 0.7 / 2000);
  EXPECT_AT_MOST(distance(kept.mean(0), at::ones({2000}, at::kDouble).mul(0.7)), 5 * sigma, "by feature");
  EXPECT_AT_MOST(distance(kept.mean(1), at::ones({2000}, at::kDouble).mul(0.7)), 5 * sigma, "by row");
}

TEST(hash_dropout_depends_on_key_layer_and_feature_alone) {
  const at::Tensor alone = mask({42}, 100, 3, 0.4);
  EXPECT(same_bits(alone[0], mask({7, 8, 42, 9}, 100, 3, 0.4)[2]));
  std::vector<int64_t> many(500, 42);  // enough rows for several threads
  const at::Tensor batch = mask(many, 100, 3, 0.4);
  for (int64_t i = 0; i < 500; i += 99) EXPECT(same_bits(alone[0], batch[i]));
  // A narrower row gets the first elements of a wider row's mask.
  EXPECT(same_bits(alone[0].narrow(0, 0, 33), mask({42}, 33, 3, 0.4)[0]));
}

TEST(hash_dropout_masks_differ) {
  const int64_t n = 20000;
  const double p = 0.4, chance = p * p + (1 - p) * (1 - p);
  const double limit = 4 * std::sqrt(chance * (1 - chance) / static_cast<double>(n));
  const at::Tensor one = mask({1}, n, 0, p);
  const auto independent = [&](const at::Tensor& other, const char* what) {
    EXPECT_AT_MOST(std::abs(agreement(one, other) - chance), limit, what);
  };
  independent(mask({2}, n, 0, p), "another key");
  independent(mask({0}, n, 0, p), "key 0");
  independent(mask({-1}, n, 0, p), "a negative key");
  independent(mask({1 + (int64_t{1} << 32)}, n, 0, p), "a key that differs in its upper half");
  independent(mask({int64_t{1} << 32}, n, 0, p), "the upper half alone");
  independent(mask({1}, n, 1, p), "another layer");
  independent(mask({1}, n, 36, p), "a far layer");
  independent(mask({0}, n, 1, p), "key and layer exchanged");
  const at::Tensor rows = mask({5, 6, 5}, n, 0, p);
  EXPECT(same_bits(rows[0], rows[2]));
  EXPECT(!same_bits(rows[0], rows[1]));
}

TEST(hash_dropout_of_zero_is_the_identity) {
  Random random(20);
  const at::Tensor x = random.normal({9, 31});
  EXPECT(same_bits(rlt::hash_dropout(x, random.ints(9, 100), 2, 0), x));
}

TEST(hash_dropout_scales_what_it_keeps) {
  Random random(21);
  const at::Tensor x = random.normal({40, 50}), keys = random.ints(40, 1000);
  const at::Tensor m = rlt::hash_dropout(at::ones({40, 50}, at::kFloat), keys, 4, 0.2);
  EXPECT_AT_MOST(distance(rlt::hash_dropout(x, keys, 4, 0.2), x.mul(m)), 1e-6, "x · mask");
}

TEST(hash_dropout_refuses_what_does_not_fit) {
  Random random(22);
  const at::Tensor x = random.normal({4, 6}), keys = random.ints(4, 10);
  EXPECT_THROWS("[0, 1)", rlt::hash_dropout(x, keys, 0, 1));
  EXPECT_THROWS("[0, 1)", rlt::hash_dropout(x, keys, 0, -0.1));
  EXPECT_THROWS("[0, 1)", rlt::hash_dropout(x, keys, 0, NAN));
  EXPECT_THROWS("row_keys", rlt::hash_dropout(x, keys.narrow(0, 0, 3), 0, 0.5));
  EXPECT_THROWS("row_keys", rlt::hash_dropout(x, keys.to(at::kInt), 0, 0.5));
  EXPECT_THROWS("row_keys", rlt::hash_dropout(x, random.ints(8, 10).slice(0, 0, 8, 2), 0, 0.5));
  EXPECT_THROWS("dense float32", rlt::hash_dropout(x.t(), random.ints(6, 10), 0, 0.5));
  EXPECT_THROWS("dense float32", rlt::hash_dropout(x.to(at::kDouble), keys, 0, 0.5));
}

}  // namespace
