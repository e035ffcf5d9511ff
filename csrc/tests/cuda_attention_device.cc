// Attention by libtorch's fused kernels on a GPU, against the CPU kernels.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "check.h"
#include "cuda/ops/attention.h"
#include "support.h"

namespace {

using rlt::test::borders;
using rlt::test::Random;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::total;
using rlt::test::vector_of;
using torch::jit::Stack;

constexpr int64_t kHeads = 4;
const at::Device kGpu(at::kCUDA, 0);

struct Case {
  std::vector<int64_t> lengths;
  std::vector<int32_t> continues;  // empty: no sequence continues another
  bool causal;
  int64_t window;
  double softcap;
};

// Sequences of zero rows, of one row, and longer than a kernel's tile; prompts with completions.
const std::vector<int64_t> kApart{5, 0, 300, 1, 70}, kShared{200, 7, 130, 1, 12}, kLonely{1, 1, 1};
const std::vector<int32_t> kRests{-1, 0, 0, 0, -1};
const std::vector<Case> kCases{{kApart, {}, true, 0, 0},      {kApart, {}, false, 0, 0},
                               {kApart, {}, true, 9, 0},      {kApart, {}, false, 9, 0},
                               {kApart, {}, true, 128, 0},    {kApart, {}, true, 300, 0},
                               {kShared, kRests, true, 0, 0}, {kShared, kRests, true, 11, 0},
                               {kLonely, {}, true, 0, 0},     {kShared, kRests, true, 40, 3}};

// Arguments of the operator: q, k and v are slices of one tensor, rounded to `type`.
struct Inputs {
  Inputs(const Case& c, int64_t kv_heads, int64_t d, at::ScalarType type, uint64_t seed) {
    Random random(seed);
    const int64_t rows = total(c.lengths);
    const auto draw = [&](int64_t width) { return random.normal({rows, width}).to(type).to(at::kFloat); };
    all = draw((kHeads + 2 * kv_heads) * d);
    grad = draw(kHeads * d);
    cu = borders(c.lengths);
    rule = {kHeads,   0.3,       c.causal,
            c.window, c.softcap, c.continues.empty() ? c10::IValue() : c10::IValue(vector_of(c.continues)),
            type};
    widths = {kHeads * d, kv_heads * d, kv_heads * d};
  }
  Stack forward(const at::Device& device) const {
    Stack stack;
    for (const at::Tensor& t : all.to(device).split_with_sizes(widths, 1)) stack.emplace_back(t);
    stack.emplace_back(cu);
    stack.insert(stack.end(), rule.begin(), rule.end());
    return stack;
  }

  at::Tensor all, grad, cu;
  Stack rule;
  std::vector<int64_t> widths;
};

std::vector<at::Tensor> run(const std::string& name, Stack stack) {
  const at::Device device = stack[0].toTensor().device();
  c10::Dispatcher::singleton().callBoxedForDispatchKey(
      c10::Dispatcher::singleton().findSchemaOrThrow(("rltrain::" + name).c_str(), ""),
      device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU, &stack);
  std::vector<at::Tensor> out;
  for (const c10::IValue& value : stack) out.push_back(value.toTensor());
  return out;
}

// Returns out, lse, and the gradients of q, k and v, on the CPU.
std::vector<at::Tensor> both(const Inputs& in, const at::Device& device) {
  Stack stack = in.forward(device);
  std::vector<at::Tensor> found = run("varlen_attention", stack);
  stack.insert(stack.begin(), in.grad.to(device));
  stack.insert(stack.begin() + 4, {found[0], found[1]});
  for (const at::Tensor& t : run("varlen_attention_backward", stack)) found.push_back(t);
  for (at::Tensor& t : found) t = t.cpu();
  return found;
}

// Limits of the error of each type against float32, relative to the largest element. Probabilities and the
// terms of sums are rounded to 8 bits in bfloat16 and to 11 in float16.
struct Limits {
  at::ScalarType type;
  double values, gradients;
};
const std::vector<Limits> kLimits{
    {at::kFloat, 2e-5, 5e-5}, {at::kBFloat16, 1e-2, 2e-2}, {at::kHalf, 2e-3, 4e-3}};

TEST(device_attention_is_the_cpus) {
  uint64_t seed = 0;
  for (const Limits& limits : kLimits) {
    for (const Case& c : kCases) {
      for (const int64_t kv_heads : {4, 2, 1}) {
        for (const int64_t d : {8, 20, 64, 192}) {
          const Inputs in(c, kv_heads, d, limits.type, ++seed);
          const auto want = both(in, at::kCPU), got = both(in, kGpu);
          const std::vector<std::string> names{"output", "lse", "grad q", "grad k", "grad v"};
          for (size_t i = 0; i < names.size(); ++i) {
            // If a query sees only one key, neither of them has a gradient.
            const double error = c.lengths == kLonely ? got[i].sub(want[i]).abs().max().item<double>()
                                                      : relative(got[i], want[i]);
            EXPECT_AT_MOST(error, i < 2 ? limits.values : limits.gradients,
                           std::string(c10::toString(limits.type)) + ", case " +
                               std::to_string(&c - kCases.data()) + ", " + std::to_string(kv_heads) +
                               " key heads of " + std::to_string(d) + ": " + names[i]);
          }
        }
      }
    }
  }
}

TEST(device_attention_takes_fused_kernels_where_they_know_the_rule) {
  using rlt::cuda::AttentionRule;
  const auto alone = rlt::cuda::layout_of({{0, 9, 0, 0}}, kGpu);
  const auto shared = rlt::cuda::layout_of({{0, 9, 0, 0}, {9, 4, 0, 9}}, kGpu);
  const AttentionRule plain{4, 2, 64, 0.5, true, 0, 0, at::kFloat};
  const auto with = [&](const auto& change) {
    AttentionRule rule = plain;
    change(rule);
    return rule;
  };
  const AttentionRule narrow = with([](AttentionRule& r) { r.head_dim = 6; }),
                      capped = with([](AttentionRule& r) { r.softcap = 3; }),
                      window = with([](AttentionRule& r) { r.window = 5; }),
                      both_ways = with([](AttentionRule& r) { r.window = 5, r.causal = false; });
  EXPECT(efficient_fits(plain, *alone) && efficient_fits(plain, *shared) && efficient_fits(window, *alone));
  for (const AttentionRule& rule : {narrow, capped, both_ways}) EXPECT(!efficient_fits(rule, *alone));
  EXPECT(!efficient_fits(window, *shared));
  EXPECT(!flash_fits(plain, *alone));
  for (AttentionRule rule : {plain, narrow, capped, window, both_ways}) {
    rule.compute = at::kBFloat16;
    const bool fits = rule.head_dim == 64 && rule.softcap == 0;
    EXPECT_EQUAL(flash_fits(rule, *alone), fits);
    EXPECT_EQUAL(flash_fits(rule, *shared), fits);
  }
}

// The smallest positive float16 is 6e-8, above the gradients in this test.
TEST(device_gradients_of_float16_may_be_small) {
  Inputs in(kCases[6], 2, 64, at::kHalf, 5);
  in.grad = in.grad.mul(1e-9);
  const auto want = both(in, at::kCPU), got = both(in, kGpu);
  for (size_t i = 2; i < want.size(); ++i) {
    EXPECT_AT_MOST(relative(got[i], want[i]), 4e-3, "gradient " + std::to_string(i - 2));
  }
  const at::Tensor w = Random(6).normal({24, kHeads * 64}).to(at::kHalf);
  const auto layer = [&](const at::Device& device) {
    return run("linear_input_grad", {in.grad.to(device), w.t().contiguous().to(device)})[0].cpu();
  };
  EXPECT_AT_MOST(relative(layer(kGpu), layer(at::kCPU)), 2e-3, "gradient of a layer");
}

// Many threads add to the gradient of a query; all completions add to the gradient of a prompt's keys.
TEST(device_attention_gives_the_same_bits_again) {
  const Case long_ones{{700, 300, 300, 300, 90}, kRests, true, 0, 0};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Inputs in(long_ones, 2, 64, type, 3);
    const auto first = both(in, kGpu);
    for (int i = 0; i < 10; ++i) {
      const auto again = both(in, kGpu);
      for (size_t j = 0; j < first.size(); ++j) {
        EXPECT(same_bits(again[j], first[j]));
      }
    }
  }
  EXPECT(!at::globalContext().deterministicAlgorithms());  // the flag is restored
}

}  // namespace
