// The CUDA operators give the CPU operators' results: on a GPU, and on the CPU with reference loops in place
// of the kernels.
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "check.h"
#include "composed.h"
#include "rltrain.h"
#include "support.h"

namespace {

using rlt::test::borders;
using rlt::test::Random;
using rlt::test::relative;
using rlt::test::vector_of;
using torch::jit::Stack;

const std::vector<std::string> kOps{
    "linear",
    "lora_linear",
    "linear_input_grad",
    "linear_weight_grad",
    "lora_grads",
    "hash_dropout",
    "varlen_attention",
    "varlen_attention_backward",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "gated_act",
    "gated_act_backward",
    "add_layer_norm",
    "add_layer_norm_backward",
    "segment_mean",
    "segment_mean_backward",
    "token_logprobs",
    "token_logprobs_hidden_grad",
    "token_logprobs_weight_grad",
};

c10::OperatorHandle find(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("rltrain::" + name).c_str(), "");
}

std::vector<at::Tensor> run(c10::DispatchKey key, const std::string& name, Stack stack) {
  if (key == c10::DispatchKey::CUDA) {
    rlt::test::call_cuda(find(name), &stack);
  } else {
    c10::Dispatcher::singleton().callBoxedForDispatchKey(find(name), key, &stack);
  }
  std::vector<at::Tensor> out;
  for (const c10::IValue& value : stack) out.push_back(value.toTensor());
  return out;
}

// Compares both devices' kernels on the same arguments; returns the CPU's results.
std::vector<at::Tensor> compare(const std::string& name, const Stack& stack, double limit = 2e-5) {
  const auto want = run(c10::DispatchKey::CPU, name, stack), got = run(c10::DispatchKey::CUDA, name, stack);
  EXPECT_EQUAL(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string what = name + ", result " + std::to_string(i);
    EXPECT_EQUAL(got[i].defined(), want[i].defined());
    if (!want[i].defined() || !got[i].defined() || want[i].numel() == 0) continue;
    EXPECT(got[i].scalar_type() == want[i].scalar_type());
    EXPECT_AT_MOST(relative(got[i], want[i]), limit, what);
  }
  return want;
}

TEST(cuda_has_every_operator_of_the_cpu) {
  size_t ours = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("rltrain::", 0) != 0) continue;
    if (name.name == "rltrain::select_rows") continue;  // composed of libtorch's operators, for any device
    if (name.name == "rltrain::quantize" || name.name == "rltrain::dequantize") continue;  // CPU only
    ++ours;
    const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU))
      rlt::test::fail(__FILE__, __LINE__, "CPU: " + name.name);
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      rlt::test::fail(__FILE__, __LINE__, "CUDA: " + name.name);
    }
  }
  EXPECT_EQUAL(ours, kOps.size());  // every operator is compared below
}

TEST(cuda_linear_layers_are_the_cpus) {
  Random random(1);
  const int64_t rows = 37, in = 48, out = 29, rank = 5;
  const at::Tensor x = random.normal({rows, in}), bias = random.normal({out}), a = random.normal({rank, in}),
                   b = random.normal({out, rank}), grad = random.normal({rows, out});
  at::Tensor keys = at::empty({rows}, at::kLong);
  for (int64_t i = 0; i < rows; ++i) keys.mutable_data_ptr<int64_t>()[i] = random.word();
  for (const double p : {0.0, 0.3}) compare("hash_dropout", {x, keys, 7, p}, 1e-7);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor w = random.normal({out, in}).to(type);
    // bfloat16 keeps 8 bits, float16 keeps 11.
    const double limit = !rlt::test::rounds(type) ? 2e-5 : type == at::kBFloat16 ? 1e-2 : 2e-3;
    compare("linear", {x, w, bias}, limit);
    compare("linear", {x, w, c10::IValue()}, limit);
    compare("linear_input_grad", {grad, w}, limit);
    for (const double p : {0.0, 0.3}) {
      const auto y = compare("lora_linear", {x, w, bias, a, b, 0.5, p, keys, 3}, limit);
      compare("lora_grads", {grad, x, w, a, b, y[1], 0.5, p, keys, 3, true}, limit);
      compare("lora_grads", {grad, x, w, a, b, y[1], 0.5, p, keys, 3, false}, limit);
    }
  }
  compare("linear_weight_grad", {grad, x});
}

TEST(cuda_attention_is_the_cpus) {
  Random random(2);
  const at::Tensor apart = borders({5, 0, 33, 1, 70}), shared = borders({20, 7, 30, 1, 12});
  const c10::IValue alone, rests = vector_of(std::vector<int32_t>{-1, 0, 0, 0, -1});
  struct Case {
    at::Tensor cu;
    c10::IValue continues;
    bool causal;
    int64_t window;
    double softcap;
  };
  const std::vector<Case> cases{{apart, alone, true, 0, 0},  {apart, alone, false, 0, 0},
                                {apart, alone, true, 9, 0},  {apart, alone, false, 9, 0},
                                {apart, alone, true, 0, 3},  {apart, alone, false, 6, 3},
                                {shared, rests, true, 0, 0}, {shared, rests, true, 11, 2}};
  const int64_t heads = 4, d = 8;
  for (const Case& c : cases) {
    const std::vector<int64_t> groups =
        &c == &cases[0] ? std::vector<int64_t>{4, 2, 1} : std::vector<int64_t>{2};
    for (const int64_t kv : groups) {
      const int64_t rows = c.cu.select(0, c.cu.numel() - 1).item<int64_t>();
      const at::Tensor all = random.normal({rows, (heads + 2 * kv) * d});  // rows of q, k and v are strided
      const at::Tensor q = all.narrow(1, 0, heads * d), k = all.narrow(1, heads * d, kv * d),
                       v = all.narrow(1, (heads + kv) * d, kv * d), grad = random.normal({rows, heads * d});
      const Stack in{q, k, v, c.cu, heads, 0.4, c.causal, c.window, c.softcap, c.continues, c10::IValue()};
      const auto y = compare("varlen_attention", in);
      compare("varlen_attention_backward", {grad, q, k, v, y[0], y[1], c.cu, heads, 0.4, c.causal, c.window,
                                            c.softcap, c.continues, c10::IValue()});
    }
  }
}

// One sequence with more scores than one block holds.
TEST(cuda_attention_goes_through_a_long_sequence_in_blocks) {
  Random random(3);
  const int64_t rows = 1100, heads = 8, d = 4;
  const at::Tensor q = random.normal({rows, heads * d}), k = random.normal({rows, heads * d}),
                   v = random.normal({rows, heads * d}), grad = random.normal({rows, heads * d}),
                   cu = borders({rows});
  const auto y =
      compare("varlen_attention", {q, k, v, cu, heads, 0.5, true, 0, 0.0, c10::IValue(), c10::IValue()});
  compare("varlen_attention_backward",
          {grad, q, k, v, y[0], y[1], cu, heads, 0.5, true, 0, 0.0, c10::IValue(), c10::IValue()}, 1e-4);
}

// Slices of a wider tensor, with strided rows; narrow and wide rows, in packs of four or not.
TEST(cuda_blocks_are_the_cpus) {
  Random random(4);
  const int64_t rows = 23;
  for (const int64_t width : {40, 30, 1280}) {
    const at::Tensor wide = random.normal({rows, 2 * width}), x = wide.narrow(1, 0, width),
                     up = wide.narrow(1, width, width), weight = random.normal({width}),
                     grad = random.normal({rows, width});
    for (const bool plus_one : {false, true}) {
      const auto y = compare("rms_norm", {x, weight, 1e-5, plus_one});
      compare("rms_norm_backward", {grad, x, weight, y[1], plus_one});
    }
    for (const int64_t half : {5, 3, 4}) {  // all or some features of a head of 10
      const int64_t head_dim = half == 4 && width % 8 == 0 ? 8 : 10;
      const at::Tensor cos = random.normal({rows, half}), sin = random.normal({rows, half});
      for (const bool inverse : {false, true}) compare("rope", {x, cos, sin, head_dim, inverse});
    }
    for (int64_t act = RLT_ACT_SILU; act <= RLT_ACT_RELU; ++act) {
      compare("gated_act", {x, up, act});
      compare("gated_act_backward", {grad, x, up, act});
    }
  }
}

TEST(cuda_norms_and_means_are_the_cpus) {
  Random random(5);
  const at::Tensor cu = borders({3, 0, 9, 1});
  for (const int64_t width : {24, 25, 1536, 1537}) {
    const at::Tensor x = random.normal({13, width}), more = random.normal({13, width}),
                     weight = random.normal({width}), bias = random.normal({width});
    const auto y = compare("add_layer_norm", {x, more, weight, bias, 1e-5});
    compare("add_layer_norm_backward", {more, y[1], weight, y[2], y[3]});
    compare("segment_mean", {x, cu});
    compare("segment_mean_backward", {random.normal({4, width}), cu});
  }
  const at::Tensor many = borders({40, 1, 0, 300, 9});  // more rows than threads read at once
  compare("segment_mean", {random.normal({350, 70}), many});
  compare("segment_mean_backward", {random.normal({5, 70}), many});
}

TEST(cuda_token_logprobs_are_the_cpus) {
  Random random(6);
  const int64_t rows = 19, width = 32;
  for (const int64_t vocab : {111, 112, 9001}) {
    const at::Tensor any = random.normal({rows, width}), bias = random.normal({vocab}),
                     targets = random.ints(rows, vocab), grad_logprobs = random.normal({rows}),
                     grad_entropy = random.normal({rows});
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      // The gradients of logits are rounded to the weight's type. Hidden states are rounded here, or the
      // ranks of close logits would differ.
      const at::Tensor hidden = rlt::test::held_by(type, any);
      const bool rounds = rlt::test::rounds(type);
      const double limit = rounds ? 3e-2 : 2e-5, back_limit = rounds ? 3e-2 : 1e-4;
      const at::Tensor w = random.normal({vocab, width}, 0.3).to(type);
      for (const double softcap : {0.0, 2.0}) {
        for (const c10::IValue& shift : {c10::IValue(), c10::IValue(bias)}) {
          const auto y = compare("token_logprobs", {hidden, w, shift, targets, 0.7, softcap, true}, limit);
          compare("token_logprobs", {hidden, w, shift, targets, 0.7, softcap, false}, limit);
          const Stack back{grad_logprobs, grad_entropy, hidden, w, shift, targets, y[1], y[3], 0.7, softcap};
          compare("token_logprobs_hidden_grad", back, back_limit);
          compare("token_logprobs_weight_grad", back, back_limit);
        }
      }
    }
  }
}

// On a GPU an invalid target gives NaN, because checking it would wait for the device.
TEST(cuda_token_logprobs_of_a_target_that_is_none) {
  Random random(7);
  const at::Tensor targets = vector_of(std::vector<int64_t>{2, 4, -1});
  const Stack in{random.normal({3, 5}), random.normal({4, 5}), c10::IValue(), targets, 1.0, 0.0, true};
  if (!rlt::test::device().is_cuda()) {
    EXPECT_THROWS("target 4 at position 1", run(c10::DispatchKey::CUDA, "token_logprobs", in));
    return;
  }
  const auto got = run(c10::DispatchKey::CUDA, "token_logprobs", in);
  EXPECT(got[0].isnan().equal(vector_of(std::vector<uint8_t>{0, 1, 1}).to(at::kBool)));
  EXPECT(got[2].narrow(0, 1, 2).eq(-1).all().item<bool>());
}

}  // namespace
