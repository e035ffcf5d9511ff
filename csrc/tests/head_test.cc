#include "ops/head.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tanh.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>

#include "check.h"
#include "support.h"

namespace {

using rlt::OptionalTensor;
using rlt::test::distance;
using rlt::test::held_by;
using rlt::test::largest;
using rlt::test::leaf;
using rlt::test::Random;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::vector_of;

struct Problem {
  at::Tensor hidden, weight, targets;
  OptionalTensor bias;
  double temperature = 1, softcap = 0;
};

Problem random_problem(Random& random, int64_t tokens, int64_t width, int64_t vocab, bool with_bias) {
  Problem p;
  p.hidden = random.normal({tokens, width});
  p.weight = random.normal({vocab, width}, 2 / std::sqrt(static_cast<double>(width)));
  if (with_bias) p.bias = random.normal({vocab});
  p.targets = random.ints(tokens, vocab);
  return p;
}

struct Results {
  at::Tensor logprobs, entropy, rank;
};

Results run(const Problem& p) {
  const auto out =
      rlt::token_logprobs(p.hidden, p.weight, p.bias, p.targets, p.temperature, p.softcap, false);
  return {std::get<0>(out), std::get<1>(out), std::get<2>(out)};
}

Problem in_double(const Problem& p) {
  Problem d = p;
  d.hidden = leaf(p.hidden, at::kDouble);
  d.weight = leaf(p.weight, at::kDouble);
  if (p.bias) d.bias = leaf(*p.bias, at::kDouble);
  return d;
}

// Reference from composite operators, in the type of p.
Results composed(const Problem& p) {
  at::Tensor z = at::linear(p.hidden, p.weight, p.bias);
  if (p.softcap > 0) z = at::tanh(z.div(p.softcap)).mul(p.softcap);
  z = z.div(p.temperature);
  const at::Tensor all = at::log_softmax(z, -1), index = p.targets.unsqueeze(1);
  return {all.gather(1, index).squeeze(1), all.exp().mul(all).sum(1).neg(), z.gt(z.gather(1, index)).sum(1)};
}

// Compares log-probabilities, entropy and every gradient with float64. Two-byte weights are never trained.
void compare(const Problem& values, const std::string& at, double limit_of_gradients = 1e-5) {
  Problem p = values;
  const bool train = values.weight.scalar_type() == at::kFloat;
  p.hidden = leaf(values.hidden);
  if (train) p.weight = leaf(values.weight);
  if (values.bias) p.bias = leaf(*values.bias);
  const Problem ref = in_double(values);
  const Results got = run(p), want = composed(ref);
  EXPECT_AT_MOST(distance(got.logprobs, want.logprobs), 1e-5, "logprobs" + at);
  EXPECT_AT_MOST(distance(got.entropy, want.entropy), 1e-5, "entropy" + at);
  EXPECT_AT_MOST(distance(got.rank, want.rank), 0, "rank" + at);
  EXPECT_AT_MOST(largest(got.logprobs.detach().clamp_min(0)), 0, "logprobs above 0" + at);

  Random random(7);
  const at::Tensor gl = random.normal({values.hidden.size(0)}), ge = random.normal({values.hidden.size(0)});
  struct Loss {
    bool logprobs, entropy;
    const char* name;
  };
  for (const Loss loss :
       {Loss{true, false, ", logprobs"}, Loss{false, true, ", entropy"}, Loss{true, true, ", both"}}) {
    const auto sum = [&](const Results& r, at::ScalarType type) {
      at::Tensor total = r.logprobs.mul(gl.to(type).mul(loss.logprobs ? 1 : 0)).sum();
      return loss.entropy ? total.add(r.entropy.mul(ge.to(type)).sum()) : total;
    };
    for (const Problem* q : std::initializer_list<const Problem*>{&p, &ref}) {
      for (at::Tensor t : {q->hidden, q->weight, q->bias.value_or(at::Tensor())}) {
        if (t.defined()) t.mutable_grad().reset();
      }
    }
    sum(got, at::kFloat).backward({}, /*retain_graph=*/true);
    sum(want, at::kDouble).backward({}, /*retain_graph=*/true);
    EXPECT_AT_MOST(relative(p.hidden.grad(), ref.hidden.grad()), limit_of_gradients,
                   "gradient of hidden" + at + loss.name);
    EXPECT_EQUAL(p.weight.grad().defined(), train);
    if (train) {
      EXPECT_AT_MOST(relative(p.weight.grad(), ref.weight.grad()), 1e-5,
                     "gradient of weight" + at + loss.name);
    }
    if (p.bias) {
      EXPECT_AT_MOST(relative(p.bias->grad(), ref.bias->grad()), 1e-5, "gradient of bias" + at + loss.name);
    }
  }
}

TEST(head_equals_log_softmax) {
  struct Case {
    int64_t tokens, width, vocab;
  };
  Random random(71);
  for (const Case c : {Case{1, 1, 1}, Case{1, 5, 2}, Case{3, 16, 257}, Case{37, 24, 1021}, Case{530, 8, 300},
                       Case{1100, 4, 257}, Case{5, 32, 50257}, Case{4, 64, 128256}}) {
    for (const bool with_bias : {false, true}) {
      const Problem p = random_problem(random, c.tokens, c.width, c.vocab, with_bias);
      compare(p, " at " + std::to_string(c.tokens) + "x" + std::to_string(c.width) + "x" +
                     std::to_string(c.vocab) + (with_bias ? ", bias" : ""));
    }
  }
}

TEST(head_with_temperature_and_softcap) {
  Random random(72);
  for (const double temperature : {0.5, 1.0, 1.7}) {
    for (const double softcap : {0.0, 1.5, 30.0}) {
      for (const bool with_bias : {false, true}) {
        Problem p = random_problem(random, 19, 12, 601, with_bias);
        p.temperature = temperature, p.softcap = softcap;
        compare(p, " at temperature " + std::to_string(temperature) + ", softcap " + std::to_string(softcap));
      }
    }
  }
}

TEST(head_with_weights_of_two_bytes) {
  Random random(73);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    // Includes an odd width and an odd vocabulary.
    for (const int64_t width : {33, 64}) {
      Problem p = random_problem(random, 150, width, 777, true);
      p.weight = p.weight.to(type);
      p.hidden = held_by(type, p.hidden);
      // Probabilities are rounded before the products that give gradients.
      compare(p, std::string(" of ") + c10::toString(type), rlt::test::rounds(type) ? 5e-3 : 1e-5);
    }
  }
}

TEST(head_by_hand) {
  // Logits 0, ln 2, ln 5 give probabilities 1/8, 2/8, 5/8.
  Problem p;
  p.hidden = vector_of<float>({1}).view({1, 1}).expand({3, 1}).contiguous();
  p.weight = vector_of<float>({0, std::log(2.0f), std::log(5.0f)}).view({3, 1});
  p.targets = vector_of<int64_t>({2, 0, 1});
  const Results r = run(p);
  const std::vector<double> want{std::log(5.0 / 8), std::log(1.0 / 8), std::log(2.0 / 8)};
  EXPECT_AT_MOST(distance(r.logprobs, vector_of(want)), 1e-6, "logprobs");
  const double entropy = -(5 * want[0] + want[1] + 2 * want[2]) / 8;
  EXPECT_AT_MOST(distance(r.entropy, vector_of<double>({entropy, entropy, entropy})), 1e-6, "entropy");
  EXPECT_AT_MOST(distance(r.rank, vector_of<int64_t>({0, 2, 1})), 0, "rank");
}

TEST(head_of_extreme_logits) {
  Random random(74);
  Problem p = random_problem(random, 6, 8, 700, false);
  p.hidden.mul_(1e4);
  const Results r = run(p), want = composed(in_double(p));
  EXPECT_AT_MOST(relative(r.logprobs, want.logprobs), 1e-5, "logprobs");
  EXPECT_AT_MOST(distance(r.entropy, want.entropy), 1e-3, "entropy");

  // A token with a bias of -∞ changes nothing, and a NaN affects only its row.
  p = random_problem(random, 3, 8, 700, true);
  p.targets = vector_of<int64_t>({1, 2, 3});
  p.bias->mutable_data_ptr<float>()[0] = -std::numeric_limits<float>::infinity();
  p.hidden = leaf(p.hidden);
  Results finite = run(p);
  Problem rest = p;
  rest.hidden = leaf(p.hidden);
  rest.weight = p.weight.slice(0, 1).contiguous(), rest.bias = p.bias->slice(0, 1).contiguous();
  rest.targets = p.targets.sub(1);
  const Results without = run(rest);
  EXPECT_AT_MOST(distance(finite.logprobs, without.logprobs), 1e-5, "logprobs without a token");
  EXPECT_AT_MOST(distance(finite.entropy, without.entropy), 1e-5, "entropy without a token");
  finite.logprobs.sum().add(finite.entropy.sum()).backward();
  without.logprobs.sum().add(without.entropy.sum()).backward();
  EXPECT_AT_MOST(relative(p.hidden.grad(), rest.hidden.grad()), 1e-5, "gradient without a token");

  p.hidden = p.hidden.detach().clone();
  p.hidden.mutable_data_ptr<float>()[8] = NAN;
  const at::Tensor nan = run(p).logprobs.isnan();
  EXPECT(!nan[0].item<bool>() && nan[1].item<bool>() && !nan[2].item<bool>());
}

TEST(head_computes_only_what_is_asked) {
  Random random(75);
  Problem p = random_problem(random, 9, 8, 300, false);
  EXPECT(!run(p).logprobs.requires_grad());
  p.hidden = leaf(p.hidden);
  const auto call = [&](bool slope) {
    return rlt::token_logprobs(p.hidden, p.weight, p.bias, p.targets, 1, 0, slope);
  };
  {
    const at::NoGradGuard guard;
    EXPECT_EQUAL(std::get<4>(call(false)).numel(), 0);
    EXPECT(!std::get<0>(call(false)).requires_grad());
  }
  const auto out = call(false);
  EXPECT(std::get<0>(out).requires_grad() && std::get<1>(out).requires_grad());
  EXPECT(!std::get<2>(out).requires_grad() && !std::get<3>(out).requires_grad());
  const at::Tensor slope = std::get<4>(out);
  EXPECT_EQUAL(slope.sizes(), p.hidden.sizes());
  std::get<0>(out).sum().backward();
  EXPECT(same_bits(p.hidden.grad(), slope));
}

TEST(head_repeats_its_bits) {
  Random random(76);
  for (const int64_t tokens : {3, 700}) {
    Problem p = random_problem(random, tokens, 40, 2000, true);
    const auto all = [&] {
      Problem q = p;
      q.hidden = leaf(p.hidden), q.weight = leaf(p.weight);
      const Results r = run(q);
      r.logprobs.sum().add(r.entropy.sum()).backward();
      return at::cat(
          {r.logprobs.detach(), r.entropy.detach(), q.hidden.grad().flatten(), q.weight.grad().flatten()});
    };
    const at::Tensor first = all();
    for (int i = 0; i < 3; ++i) EXPECT(same_bits(all(), first));
  }
}

TEST(head_of_no_tokens) {
  Random random(77);
  Problem p = random_problem(random, 0, 8, 300, true);
  p.hidden = leaf(p.hidden), p.weight = leaf(p.weight);
  const Results r = run(p);
  EXPECT_EQUAL(r.logprobs.numel() + r.entropy.numel() + r.rank.numel(), 0);
  r.logprobs.sum().add(r.entropy.sum()).backward();
  EXPECT_EQUAL(p.hidden.grad().sizes(), p.hidden.sizes());
  EXPECT_AT_MOST(largest(p.weight.grad()), 0, "gradient of weight");
}

TEST(head_refuses_what_does_not_fit) {
  Random random(78);
  const Problem good = random_problem(random, 4, 8, 300, true);
  const auto with = [&](auto change) {
    Problem p = good;
    change(p);
    return run(p).logprobs;
  };
  EXPECT_THROWS("target 300 at position 2 is outside of the vocabulary of 300", with([](Problem& p) {
                  p.targets = vector_of<int64_t>({0, 299, 300, 1});
                }));
  EXPECT_THROWS("target -1 at position 0", with([](Problem& p) {
                  p.targets = vector_of<int64_t>({-1, 0, 0, 0});
                }));
  EXPECT_THROWS("do not fit", with([](Problem& p) { p.weight = p.weight.t(); }));
  EXPECT_THROWS("do not fit", with([](Problem& p) { p.bias = p.bias->slice(0, 1); }));
  EXPECT_THROWS("4 dense int64", with([](Problem& p) { p.targets = p.targets.to(at::kInt); }));
  EXPECT_THROWS("4 dense int64", with([](Problem& p) { p.targets = p.targets.slice(0, 1); }));
  EXPECT_THROWS("float32", with([](Problem& p) { p.hidden = p.hidden.to(at::kDouble); }));
  EXPECT_THROWS("float32", with([](Problem& p) { p.weight = p.weight.to(at::kDouble); }));
  EXPECT_THROWS("temperature", with([](Problem& p) { p.temperature = 0; }));
  EXPECT_THROWS("temperature", with([](Problem& p) { p.temperature = NAN; }));
  EXPECT_THROWS("softcap", with([](Problem& p) { p.softcap = -1; }));
  EXPECT_THROWS("trained weight must be float32",
                with([](Problem& p) { p.weight = p.weight.to(at::kHalf).requires_grad_(true); }));
}

// Replaces the CPU allocator and counts the bytes that tensors hold.
class Counter : public c10::Allocator {
 public:
  Counter() : usual_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 1); }
  ~Counter() override { c10::SetCPUAllocator(usual_, 1); }

  c10::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(Block{usual_->allocate(bytes), bytes, this});
    void* const data = block->memory.get();
    const size_t now = held_ += bytes;
    size_t most = most_;
    while (now > most && !most_.compare_exchange_weak(most, now)) {
    }
    return {data, block.release(), &Counter::release, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  size_t most() const { return most_; }

 private:
  struct Block {
    c10::DataPtr memory;
    size_t bytes;
    Counter* counter;
  };
  static void release(void* pointer) {
    const std::unique_ptr<Block> block(static_cast<Block*>(pointer));
    block->counter->held_ -= block->bytes;
  }

  c10::Allocator* usual_;
  std::atomic<size_t> held_{0}, most_{0};
};

TEST(head_memory_does_not_grow_with_the_vocabulary) {
  Random random(79);
  const auto measure = [&](int64_t vocab, at::ScalarType type, bool entropy) {
    Problem p = random_problem(random, 64, 32, vocab, false);
    p.weight = p.weight.to(type);
    p.hidden = leaf(p.hidden);
    const Counter counter;
    {
      const Results r = run(p);
      (entropy ? r.logprobs.add(r.entropy) : r.logprobs).sum().backward();
      p.hidden.mutable_grad().reset();
    }
    return counter.most();
  };
  // The logits of the larger vocabulary would take 16 MiB. The peak varies with the timing of threads.
  const double limit = 400e3;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool entropy : {false, true}) {
      for (const int64_t vocab : {4096, 65536}) {
        EXPECT_AT_MOST(static_cast<double>(measure(vocab, type, entropy)), limit, "bytes");
      }
    }
  }
}

}  // namespace
