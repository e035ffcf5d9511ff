// Causal attention: windows, softcap, grouped heads, strided rows; also windows without causality.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

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
using Lengths = std::vector<int64_t>;

struct Rule {
  int64_t heads, kv_heads, head_dim, window;
  double softcap;
  bool causal = true;
};

std::string text(const Rule& r) {
  return " with " + std::to_string(r.heads) + "/" + std::to_string(r.kv_heads) + " heads of " +
         std::to_string(r.head_dim) + ", window " + std::to_string(r.window) + ", softcap " +
         std::to_string(r.softcap) + (r.causal ? "" : ", bidirectional");
}

constexpr double kScale = 0.4;

at::Tensor ours(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Lengths& lengths,
                const Rule& r) {
  return std::get<0>(
      rlt::varlen_attention(q, k, v, borders(lengths), r.heads, kScale, r.causal, r.window, r.softcap));
}

// Reference attention from composite operators, one sequence and one head at a time.
at::Tensor looped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Lengths& lengths,
                  const Rule& r) {
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (const int64_t n : lengths) {
    const at::Tensor index = at::arange(n, at::kLong);
    const at::Tensor back = index.unsqueeze(1).sub(index.unsqueeze(0));  // distance back to the key
    at::Tensor hidden = r.causal ? back.lt(0) : back.gt(n);
    if (r.window > 0) hidden = hidden.logical_or(back.abs().ge(r.window));
    std::vector<at::Tensor> columns;
    for (int64_t h = 0; h < r.heads; ++h) {
      const auto part = [&](const at::Tensor& t, int64_t head) {
        return t.narrow(0, first, n).narrow(1, head * r.head_dim, r.head_dim);
      };
      const int64_t kv = h / (r.heads / r.kv_heads);
      at::Tensor scores = part(q, h).matmul(part(k, kv).t()).mul(kScale);
      if (r.softcap > 0) scores = scores.div(r.softcap).tanh().mul(r.softcap);
      columns.push_back(scores.masked_fill(hidden, -INFINITY).softmax(-1).matmul(part(v, kv)));
    }
    rows.push_back(at::cat(columns, 1));
    first += n;
  }
  return at::cat(rows, 0);
}

struct Inputs {
  at::Tensor q, k, v;
};

Inputs random_inputs(Random& random, int64_t rows, const Rule& r) {
  return {random.normal({rows, r.heads * r.head_dim}), random.normal({rows, r.kv_heads * r.head_dim}),
          random.normal({rows, r.kv_heads * r.head_dim})};
}
Inputs leaves(const Inputs& in, at::ScalarType type) {
  return {leaf(in.q, type), leaf(in.k, type), leaf(in.v, type)};
}

const Lengths kLengths{1, 2, 3, 0, 17, 63, 64, 65, 127, 128, 129, 200, 255, 300};

TEST(causal_attention_equals_masked_attention) {
  Random random(71);
  for (const Rule& r :
       {Rule{3, 3, 8, 0, 0}, Rule{6, 2, 8, 0, 0}, Rule{3, 1, 12, 0, 0}, Rule{2, 1, 16, 1, 0},
        Rule{2, 2, 8, 7, 0}, Rule{4, 2, 8, 64, 0}, Rule{2, 1, 8, 100, 3}, Rule{3, 3, 8, 0, 1.5},
        Rule{2, 2, 5, 1000, 30}, Rule{2, 2, 8, 7, 0, false}, Rule{4, 2, 8, 65, 0, false},
        Rule{2, 1, 8, 100, 3, false}, Rule{2, 2, 8, 1, 0, false}, Rule{2, 2, 8, 1000, 0, false}}) {
    const int64_t rows = total(kLengths);
    const Inputs in = random_inputs(random, rows, r), got = leaves(in, at::kFloat),
                 want = leaves(in, at::kDouble);
    const at::Tensor y = ours(got.q, got.k, got.v, kLengths, r);
    const at::Tensor expected = looped(want.q, want.k, want.v, kLengths, r);
    EXPECT_AT_MOST(distance(y, expected), 1e-5, "forward" + text(r));
    const at::Tensor upstream = random.normal(y.sizes());
    y.backward(upstream);
    expected.backward(upstream.to(at::kDouble));
    // With a window of 1 a query sees only its own key, so q and k have no gradient.
    if (r.window != 1) {
      EXPECT_AT_MOST(relative(got.q.grad(), want.q.grad()), 1e-4, "gradient of q" + text(r));
      EXPECT_AT_MOST(relative(got.k.grad(), want.k.grad()), 1e-4, "gradient of k" + text(r));
    }
    EXPECT_AT_MOST(relative(got.v.grad(), want.v.grad()), 1e-4, "gradient of v" + text(r));
  }
}

// In bfloat16, results and gradients match float32 to bfloat16's precision. Splitting a sequence in two
// changes only the order of summation.
TEST(attention_of_bfloat16_is_near_that_of_floats) {
  if (!rlt::test::exact()) return;  // the GPU operators take other types
  Random random(73);
  for (const Rule& r : {Rule{3, 1, 64, 0, 0}, Rule{4, 2, 40, 50, 0}, Rule{2, 2, 17, 0, 3},
                        Rule{2, 2, 64, 0, 0, false}, Rule{2, 1, 32, 70, 0, false}}) {
    const Inputs in = random_inputs(random, total(kLengths), r), got = leaves(in, at::kFloat),
                 want = leaves(in, at::kDouble);
    const auto call = [&](const Inputs& x, const Lengths& lengths,
                          const std::optional<at::Tensor>& continues) {
      return std::get<0>(rlt::varlen_attention(x.q, x.k, x.v, borders(lengths), r.heads, kScale, r.causal,
                                               r.window, r.softcap, continues, at::kBFloat16));
    };
    const at::Tensor y = call(got, kLengths, {}), expected = looped(want.q, want.k, want.v, kLengths, r);
    EXPECT_AT_MOST(relative(y, expected), 1e-2, "forward" + text(r));
    const at::Tensor upstream = random.normal(y.sizes());
    y.backward(upstream);
    expected.backward(upstream.to(at::kDouble));
    EXPECT_AT_MOST(relative(got.q.grad(), want.q.grad()), 2e-2, "gradient of q" + text(r));
    EXPECT_AT_MOST(relative(got.k.grad(), want.k.grad()), 2e-2, "gradient of k" + text(r));
    EXPECT_AT_MOST(relative(got.v.grad(), want.v.grad()), 2e-2, "gradient of v" + text(r));
    if (!r.causal) continue;
    const Inputs row = random_inputs(random, 200, r), whole = leaves(row, at::kFloat),
                 cut = leaves(row, at::kFloat);
    const at::Tensor all = call(whole, {200}, {}),
                     parts = call(cut, {77, 123}, rlt::test::vector_of(std::vector<int32_t>{-1, 0}));
    const at::Tensor grad = random.normal(all.sizes());
    all.backward(grad);
    parts.backward(grad);
    EXPECT_AT_MOST(relative(parts, all), 1e-2, "cut in two" + text(r));
    EXPECT_AT_MOST(relative(cut.k.grad(), whole.k.grad()), 2e-2, "gradient of k cut in two" + text(r));
    EXPECT_AT_MOST(relative(cut.q.grad(), whole.q.grad()), 2e-2, "gradient of q cut in two" + text(r));
  }
}

// A prefix of `beginning` rows, and the lengths of the sequences that continue it.
struct Family {
  int64_t beginning;
  Lengths rests;
};

TEST(attention_of_rests_equals_whole_sequences) {
  const std::vector<Family> families{{5, {1, 7}}, {70, {3, 130, 64}}, {9, {}}, {1, {1}}, {128, {128, 1}}};
  Lengths lengths, whole;          // of the batch with shared prefixes, and of the batch that repeats them
  std::vector<int32_t> continues;  // for the shared batch
  std::vector<int64_t> rows,
      places;  // row in the shared batch of each repeated row, and the reverse
  int64_t first = 0;
  for (const Family& f : families) {
    const auto parent = static_cast<int32_t>(lengths.size());
    lengths.push_back(f.beginning);
    continues.push_back(-1);
    for (int64_t i = 0; i < f.beginning; ++i) places.push_back(static_cast<int64_t>(rows.size()) + i);
    int64_t rest = first + f.beginning;
    for (const int64_t length : f.rests.empty() ? Lengths{0} : f.rests) {
      for (int64_t i = 0; i < f.beginning; ++i) rows.push_back(first + i);
      for (int64_t i = 0; i < length; ++i) {
        places.push_back(static_cast<int64_t>(rows.size()));
        rows.push_back(rest++);
      }
      whole.push_back(f.beginning + length);
      if (f.rests.empty()) break;
      lengths.push_back(length);
      continues.push_back(parent);
    }
    first += f.beginning + total(f.rests);
  }
  const at::Tensor parents = rlt::test::vector_of(continues), repeat = rlt::test::vector_of(rows),
                   pick = rlt::test::vector_of(places);
  Random random(73);
  for (const Rule& r : {Rule{3, 3, 8, 0, 0}, Rule{6, 2, 8, 0, 0}, Rule{4, 2, 8, 7, 0}, Rule{4, 2, 8, 100, 0},
                        Rule{2, 1, 8, 100, 3}, Rule{3, 3, 8, 0, 1.5}}) {
    const Inputs in = random_inputs(random, first, r), got = leaves(in, at::kFloat),
                 want = leaves(in, at::kDouble);
    const at::Tensor y = std::get<0>(rlt::varlen_attention(got.q, got.k, got.v, borders(lengths), r.heads,
                                                           kScale, true, r.window, r.softcap, parents));
    const auto repeated = [&](const at::Tensor& t) { return t.index_select(0, repeat); };
    const at::Tensor expected =
        looped(repeated(want.q), repeated(want.k), repeated(want.v), whole, r).index_select(0, pick);
    EXPECT_AT_MOST(distance(y, expected), 1e-5, "forward" + text(r));
    const at::Tensor upstream = random.normal(y.sizes());
    y.backward(upstream);
    expected.backward(upstream.to(at::kDouble));
    EXPECT_AT_MOST(relative(got.q.grad(), want.q.grad()), 1e-4, "gradient of q" + text(r));
    EXPECT_AT_MOST(relative(got.k.grad(), want.k.grad()), 1e-4, "gradient of k" + text(r));
    EXPECT_AT_MOST(relative(got.v.grad(), want.v.grad()), 1e-4, "gradient of v" + text(r));
  }
}

TEST(attention_refuses_rests_that_follow_nothing) {
  Random random(74);
  const Rule r{2, 1, 8, 0, 0};
  const Inputs in = random_inputs(random, 6, r);
  const auto attend = [&](const std::vector<int32_t>& continues, bool causal) {
    return rlt::varlen_attention(in.q, in.k, in.v, borders({1, 2, 3}), r.heads, kScale, causal, 0, 0,
                                 rlt::test::vector_of(continues));
  };
  for (const std::vector<int32_t>& wrong : std::vector<std::vector<int32_t>>{
           {0, -1, -1}, {-1, 1, -1}, {-1, -1, 0}, {-1, 0, 1}, {-1, -2, -1}, {-1, 0}, {}}) {
    EXPECT_THROWS("continue", attend(wrong, true));
  }
  EXPECT_THROWS("causal", attend({-1, 0, 0}, false));
}

TEST(causal_attention_at_each_length_alone) {
  Random random(72);
  const Rule r{2, 1, 8, 0, 0};
  for (int64_t n = 1; n <= 300; n += n < 70 ? 1 : 23) {
    const Inputs in = random_inputs(random, n, r), got = leaves(in, at::kFloat),
                 want = leaves(in, at::kDouble);
    const at::Tensor y = ours(got.q, got.k, got.v, {n}, r), expected = looped(want.q, want.k, want.v, {n}, r);
    y.sum().backward();
    expected.sum().backward();
    EXPECT_AT_MOST(distance(y, expected), 1e-5, "forward at length " + std::to_string(n));
    EXPECT_AT_MOST(relative(got.v.grad(), want.v.grad()), 1e-4, "gradient of v at " + std::to_string(n));
    EXPECT_AT_MOST(distance(got.k.grad(), want.k.grad()), 1e-4, "gradient of k at " + std::to_string(n));
  }
}

TEST(grouped_heads_may_be_bidirectional) {
  Random random(73);
  const int64_t n = 40;
  const at::Tensor q = random.normal({n, 32}), k = random.normal({n, 8}), v = random.normal({n, 8});
  const auto repeated = [](const at::Tensor& t) { return at::cat({t, t, t, t}, 1); };
  EXPECT_AT_MOST(
      distance(std::get<0>(rlt::varlen_attention(q, k, v, borders({n}), 4, 0.5)),
               std::get<0>(rlt::varlen_attention(q, repeated(k), repeated(v), borders({n}), 4, 0.5))),
      0, "one key head for four queries");
}

TEST(attention_reads_strided_rows) {
  Random random(74);
  const Rule r{4, 2, 8, 0, 0};
  const Lengths lengths{70, 9};
  const at::Tensor fused = leaf(random.normal({total(lengths), 64}));
  const auto parts = fused.split_with_sizes({32, 16, 16}, 1);
  const Inputs dense = leaves({parts[0], parts[1], parts[2]}, at::kFloat);
  const at::Tensor y = ours(parts[0], parts[1], parts[2], lengths, r),
                   want = ours(dense.q, dense.k, dense.v, lengths, r);
  EXPECT_AT_MOST(distance(y, want), 1e-6, "forward");
  y.sum().backward();
  want.sum().backward();
  EXPECT_AT_MOST(distance(fused.grad(), at::cat({dense.q.grad(), dense.k.grad(), dense.v.grad()}, 1)), 1e-5,
                 "gradient");
}

TEST(causal_attention_twice_is_bitwise_equal) {
  Random random(75);
  const Rule r{3, 1, 16, 90, 5};
  const Inputs in = random_inputs(random, total(kLengths), r);
  Inputs first;
  at::Tensor first_y;
  for (int run = 0; run < 4; ++run) {
    const at::Tensor shift = at::empty({run * 37 + 1}, at::kFloat);  // shifts the following allocations
    const Inputs now = leaves(in, at::kFloat);
    const at::Tensor y = ours(now.q, now.k, now.v, kLengths, r);
    y.backward(in.q);
    if (run == 0) {
      first = now;
      first_y = y;
    }
    EXPECT(same_bits(y, first_y) && same_bits(now.q.grad(), first.q.grad()) &&
           same_bits(now.k.grad(), first.k.grad()) && same_bits(now.v.grad(), first.v.grad()));
  }
}

TEST(causal_attention_refuses_what_does_not_fit) {
  Random random(76);
  const at::Tensor q = random.normal({6, 16}), k = random.normal({6, 8}), cu = borders({6});
  const auto call = [&](const at::Tensor& keys, bool causal, int64_t window, double softcap) {
    return rlt::varlen_attention(q, keys, keys, cu, 4, 1, causal, window, softcap);
  };
  EXPECT_THROWS("a window of -1", call(k, true, -1, 0));
  EXPECT_THROWS("a window of -1", call(k, false, -1, 0));
  EXPECT_THROWS("softcap", call(k, true, 0, -2));
  EXPECT_THROWS("softcap", call(k, true, 0, NAN));
  EXPECT_THROWS("do not fit", call(random.normal({6, 12}), true, 0, 0));  // 4 heads are not divisible by 3
  EXPECT_THROWS("do not fit", call(random.normal({6, 6}), true, 0, 0));
  EXPECT_THROWS("dense", call(random.normal({8, 6}).t(), true, 0, 0));
}

}  // namespace
