#include <ATen/ops/cat.h>

#include <string>

#include "check.h"
#include "ops/packed.h"
#include "support.h"

namespace {

using rlt::test::borders;
using rlt::test::distance;
using rlt::test::finite;
using rlt::test::leaf;
using rlt::test::Random;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::total;
using Lengths = std::vector<int64_t>;

const Lengths kMixed{33, 1, 300, 7, 64, 2, 512, 31, 128, 32};

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu,
                     int64_t heads, double scale) {
  return std::get<0>(rlt::varlen_attention(q, k, v, cu, heads, scale));
}

// Reference attention from composite operators, one sequence and one head at a time.
at::Tensor looped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Lengths& lengths,
                  int64_t heads, double scale) {
  const int64_t d = q.size(1) / heads;
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (const int64_t n : lengths) {
    std::vector<at::Tensor> columns;
    for (int64_t h = 0; h < heads; ++h) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, n).narrow(1, h * d, d); };
      columns.push_back(part(q).matmul(part(k).t()).mul(scale).softmax(-1).matmul(part(v)));
    }
    rows.push_back(at::cat(columns, 1));
    first += n;
  }
  return at::cat(rows, 0);
}

struct Inputs {
  at::Tensor q, k, v;
};

Inputs leaves(const Inputs& in, at::ScalarType type) {
  return {leaf(in.q, type), leaf(in.k, type), leaf(in.v, type)};
}

Inputs random_inputs(Random& random, int64_t rows, int64_t width, double spread = 1) {
  return {random.normal({rows, width}, spread), random.normal({rows, width}, spread),
          random.normal({rows, width})};
}

TEST(attention_equals_looped_attention) {
  Random random(1);
  for (const int64_t d : {8, 12, 32, 64}) {
    const int64_t heads = 3, rows = total(kMixed), width = heads * d;
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    const Inputs in = random_inputs(random, rows, width), got = leaves(in, at::kFloat),
                 want = leaves(in, at::kDouble);
    const at::Tensor weights = random.normal({rows, width});
    const at::Tensor y = attention(got.q, got.k, got.v, borders(kMixed), heads, scale);
    const at::Tensor expected = looped(want.q, want.k, want.v, kMixed, heads, scale);
    const std::string at = " at head dim " + std::to_string(d);
    EXPECT_AT_MOST(distance(y, expected), 1e-5, "forward" + at);
    y.backward(weights);
    expected.backward(weights.to(at::kDouble));
    EXPECT_AT_MOST(relative(got.q.grad(), want.q.grad()), 1e-4, "gradient of q" + at);
    EXPECT_AT_MOST(relative(got.k.grad(), want.k.grad()), 1e-4, "gradient of k" + at);
    EXPECT_AT_MOST(relative(got.v.grad(), want.v.grad()), 1e-4, "gradient of v" + at);
  }
}

TEST(attention_at_each_length_alone) {
  Random random(2);
  for (const int64_t n : kMixed) {
    const Inputs in = random_inputs(random, n, 24), got = leaves(in, at::kFloat),
                 want = leaves(in, at::kDouble);
    const at::Tensor weights = random.normal({n, 24});
    const at::Tensor y = attention(got.q, got.k, got.v, borders({n}), 2, 0.3);
    const at::Tensor expected = looped(want.q, want.k, want.v, {n}, 2, 0.3);
    y.backward(weights);
    expected.backward(weights.to(at::kDouble));
    const std::string at = " at length " + std::to_string(n);
    EXPECT_AT_MOST(distance(y, expected), 1e-5, "forward" + at);
    // A sequence of one row attends only to itself: the probability is 1 whatever q and k are.
    if (n == 1) {
      EXPECT_AT_MOST(rlt::test::largest(got.q.grad()), 1e-5, "gradient of q" + at);
    } else {
      EXPECT_AT_MOST(relative(got.q.grad(), want.q.grad()), 1e-4, "gradient of q" + at);
      EXPECT_AT_MOST(relative(got.k.grad(), want.k.grad()), 1e-4, "gradient of k" + at);
    }
    EXPECT_AT_MOST(relative(got.v.grad(), want.v.grad()), 1e-4, "gradient of v" + at);
  }
}

TEST(attention_returns_the_log_denominator) {
  Random random(3);
  const Inputs in = random_inputs(random, 9, 8);
  const at::Tensor lse = std::get<1>(rlt::varlen_attention(in.q, in.k, in.v, borders({4, 5}), 2, 0.5));
  const auto part = [](const at::Tensor& t) { return t.narrow(0, 4, 5).narrow(1, 4, 4); };
  const at::Tensor scores = part(in.q).matmul(part(in.k).t());
  const at::Tensor want = scores.mul(0.5).logsumexp(c10::IntArrayRef{1});
  EXPECT_AT_MOST(distance(lse.select(0, 1).narrow(0, 4, 5), want), 1e-5, "lse");
}

TEST(attention_takes_only_gradients_that_are_asked_for) {
  Random random(4);
  const Inputs in = random_inputs(random, 6, 8);
  const at::Tensor v = leaf(in.v);
  attention(in.q, in.k, v, borders({6}), 1, 1).sum().backward();
  EXPECT(v.grad().defined());
  EXPECT(!in.q.grad().defined());
}

TEST(attention_of_zero_length_sequences) {
  Random random(5);
  const Inputs in = random_inputs(random, 5, 8), a = leaves(in, at::kFloat), b = leaves(in, at::kFloat);
  const at::Tensor with = attention(a.q, a.k, a.v, borders({0, 3, 0, 0, 2, 0}), 2, 0.5);
  const at::Tensor without = attention(b.q, b.k, b.v, borders({3, 2}), 2, 0.5);
  EXPECT_AT_MOST(distance(with, without), 0, "forward");
  with.sum().backward();
  without.sum().backward();
  EXPECT_AT_MOST(distance(a.k.grad(), b.k.grad()), 0, "gradient");

  for (const Lengths& lengths : {Lengths{}, Lengths{0}, Lengths{0, 0}}) {
    const Inputs none = leaves(random_inputs(random, 0, 8), at::kFloat);
    const at::Tensor y = attention(none.q, none.k, none.v, borders(lengths), 2, 0.5);
    EXPECT_EQUAL(y.sizes(), c10::IntArrayRef({0, 8}));
    y.sum().backward();
    EXPECT_EQUAL(none.q.grad().sizes(), c10::IntArrayRef({0, 8}));
  }
}

TEST(attention_stays_finite_at_large_logits) {
  Random random(6);
  const Lengths lengths{40, 1, 17};
  for (const double spread : {9.0, 80.0, 1000.0}) {  // logits up to a few times spread²
    const Inputs in = random_inputs(random, total(lengths), 32, spread), got = leaves(in, at::kFloat),
                 want = leaves(in, at::kDouble);
    const at::Tensor y = attention(got.q, got.k, got.v, borders(lengths), 2, 0.25);
    const at::Tensor expected = looped(want.q, want.k, want.v, lengths, 2, 0.25);
    y.sum().backward();
    EXPECT(finite(y) && finite(got.q.grad()) && finite(got.k.grad()) && finite(got.v.grad()));
    // The error of float32 scores grows with their size, and so does the error of the probabilities.
    EXPECT_AT_MOST(distance(y, expected), 1e-6 * spread * spread, "forward at " + std::to_string(spread));
  }
  // Logits of exactly ±80.
  at::Tensor q = at::empty({4, 8}, at::kFloat).fill_(1), k = at::empty({4, 8}, at::kFloat).fill_(10);
  k.narrow(0, 2, 2).fill_(-10);
  const at::Tensor v = random.normal({4, 8});
  const at::Tensor y = attention(q, k, v, borders({4}), 1, 1);
  EXPECT_AT_MOST(distance(y.select(0, 0), v.narrow(0, 0, 2).mean(0)), 1e-6, "logits of 80 and -80");
  k.fill_(-10);
  EXPECT_AT_MOST(distance(attention(q, k, v, borders({4}), 1, 1).select(0, 3), v.mean(0)), 1e-6,
                 "logits of -80");
}

TEST(packed_attention_equals_one_by_one) {
  Random random(7);
  const int64_t heads = 2, rows = total(kMixed), width = 64;
  const Inputs in = random_inputs(random, rows, width), packed = leaves(in, at::kFloat),
               single = leaves(in, at::kFloat);
  const at::Tensor weights = random.normal({rows, width});
  attention(packed.q, packed.k, packed.v, borders(kMixed), heads, 0.2).backward(weights);
  const at::Tensor y = attention(packed.q, packed.k, packed.v, borders(kMixed), heads, 0.2);
  int64_t first = 0;
  for (const int64_t n : kMixed) {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, n); };
    const at::Tensor one =
        attention(part(single.q), part(single.k), part(single.v), borders({n}), heads, 0.2);
    EXPECT_AT_MOST(distance(one, part(y)), 1e-6, "forward at length " + std::to_string(n));
    one.backward(part(weights));
    first += n;
  }
  EXPECT_AT_MOST(relative(packed.q.grad(), single.q.grad()), 1e-6, "gradient of q");
  EXPECT_AT_MOST(relative(packed.k.grad(), single.k.grad()), 1e-6, "gradient of k");
  EXPECT_AT_MOST(relative(packed.v.grad(), single.v.grad()), 1e-6, "gradient of v");
}

TEST(attention_twice_is_bitwise_equal) {
  Random random(8);
  const Inputs in = random_inputs(random, total(kMixed), 96);
  const at::Tensor weights = random.normal({total(kMixed), 96});
  Inputs first;
  at::Tensor first_y;
  for (int run = 0; run < 6; ++run) {
    // Shifts the following allocations, so that their alignment varies.
    const at::Tensor shift = at::empty({run * 37 + 1}, at::kFloat);
    const std::vector<float> heap(static_cast<size_t>(run * 5 + 1));
    const Inputs now = leaves(in, at::kFloat);
    const at::Tensor y = attention(now.q, now.k, now.v, borders(kMixed), 3, 0.2);
    y.backward(weights);
    if (run == 0) {
      first = now;
      first_y = y;
      continue;
    }
    EXPECT(same_bits(y, first_y));
    EXPECT(same_bits(now.q.grad(), first.q.grad()));
    EXPECT(same_bits(now.k.grad(), first.k.grad()));
    EXPECT(same_bits(now.v.grad(), first.v.grad()));
  }
}

TEST(attention_refuses_what_does_not_fit) {
  Random random(9);
  const Inputs in = random_inputs(random, 6, 8);
  const at::Tensor cu = borders({2, 4});
  const auto call = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& c,
                        int64_t heads) { return rlt::varlen_attention(q, k, v, c, heads, 1); };
  EXPECT_THROWS("do not fit", call(in.q, in.k, in.v, cu, 3));
  EXPECT_THROWS("do not fit", call(in.q, in.k, in.v, cu, 0));
  EXPECT_THROWS("do not fit", call(in.q, in.k, in.v, cu, -2));
  EXPECT_THROWS("do not fit", call(in.q, in.k.narrow(0, 0, 5), in.v, cu, 2));
  EXPECT_THROWS("do not fit", call(in.q, in.k, in.v.narrow(1, 0, 4), cu, 2));
  const at::Tensor thin = at::empty({6, 0}, at::kFloat);
  EXPECT_THROWS("do not fit", call(thin, thin, thin, cu, 2));
  EXPECT_THROWS("float32", call(in.q.to(at::kDouble), in.k, in.v, cu, 2));
  EXPECT_THROWS("dense", call(in.q.t().contiguous().t(), in.k, in.v, cu, 2));
  EXPECT_THROWS("run from 0 to 6", call(in.q, in.k, in.v, borders({2, 3}), 2));
  EXPECT_THROWS("run from 0 to 6", call(in.q, in.k, in.v, borders({2, 5}), 2));
  EXPECT_THROWS("run from 0 to 6", call(in.q, in.k, in.v, rlt::test::vector_of<int32_t>({1, 6}), 2));
  EXPECT_THROWS("falls from 5 to 3", call(in.q, in.k, in.v, rlt::test::vector_of<int32_t>({0, 5, 3, 6}), 2));
  EXPECT_THROWS("int32", call(in.q, in.k, in.v, cu.to(at::kLong), 2));
  EXPECT_THROWS("int32", call(in.q, in.k, in.v, at::empty({0}, at::kInt), 2));
  EXPECT_THROWS("scale", rlt::varlen_attention(in.q, in.k, in.v, cu, 2, -1));
  EXPECT_THROWS("scale", rlt::varlen_attention(in.q, in.k, in.v, cu, 2, NAN));
}

}  // namespace
