// Tests of the C ABI: operator calls, the errors they return, and leaks.
#include <array>
#include <cstring>
#include <string>

#include "abi_support.h"
#include "support.h"

namespace {

using rlt::test::Handles;
using rlt::test::NoLeaks;
using rlt::test::Random;
using rlt::test::text_of;

rlt_op find(const char* name, const char* overload = "") {
  rlt_op op = 0;
  EXPECT_OK(rlt_op_find(name, overload, &op));
  return op;
}

int64_t bits(double value) {
  int64_t word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

int64_t word(rlt_tensor t) { return static_cast<int64_t>(t); }

// A result buffer that detects writes past its end.
struct Results {
  std::array<rlt_tensor, 8> handles{};
  int32_t got = -1;

  rlt_error* call(rlt_op op, const std::vector<int64_t>& tape, int32_t nargs, int32_t room = 8,
                  int32_t mode = RLT_NO_GRAD) {
    return rlt_op_call(op, mode, tape.data(), static_cast<int32_t>(tape.size()), nargs, handles.data(), room,
                       &got);
  }
  void free() {
    rlt_tensor_free(handles.data(), 8);
    handles.fill(0);
  }
};

TEST(abi_op_find) {
  rlt_op op = 0;
  EXPECT_ERROR("no_such", rlt_op_find("aten::no_such", "", &op));
  EXPECT_ERROR("aten::add", rlt_op_find("aten::add", "no_such_overload", &op));
  EXPECT_ERROR("", rlt_op_find("", "", &op));
  EXPECT_ERROR("", rlt_op_find("::::", "", &op));
  EXPECT_EQUAL(op, rlt_op{0});
}

TEST(abi_op_call_takes_every_kind_of_argument) {
  const NoLeaks check;
  Handles h;
  Results r;
  const rlt_tensor x = h.give(rlt::test::vector_of<float>({1, 2, 3}));
  // add(x, x, alpha=2), and with alpha from the schema.
  const rlt_op add = find("aten::add", "Tensor");
  EXPECT_OK(r.call(add, {1, word(x), 1, word(x), 7, bits(2)}, 3));
  EXPECT_EQUAL(r.got, 1);
  EXPECT_EQUAL(rlt::borrow(r.handles[0])[2].item<float>(), 9.0f);
  r.free();
  EXPECT_OK(r.call(add, {1, word(x), 1, word(x)}, 2));
  EXPECT_EQUAL(rlt::borrow(r.handles[0])[2].item<float>(), 6.0f);
  r.free();
  // cat([x, x], 0); sum(x, [0], keepdim=true, dtype=None); size(x, 0), which returns no tensor.
  EXPECT_OK(r.call(find("aten::cat"), {6, 2, word(x), word(x), 2, 0}, 2));
  EXPECT_EQUAL(rlt::borrow(r.handles[0]).numel(), 6);
  r.free();
  EXPECT_OK(r.call(find("aten::sum", "dim_IntList"), {1, word(x), 5, 1, 0, 4, 1, 0}, 4));
  EXPECT_EQUAL(rlt::borrow(r.handles[0]).item<float>(), 6.0f);
  r.free();
  EXPECT_OK(r.call(find("aten::size", "int"), {1, word(x), 2, 0}, 2));
  EXPECT_EQUAL(r.got, 0);
  // empty([2], dtype=None, layout=None, device=cpu), then devices that do not exist.
  EXPECT_OK(r.call(find("aten::empty", "memory_format"), {5, 1, 2, 0, 0, 8, RLT_CPU}, 4));
  EXPECT(rlt::borrow(r.handles[0]).is_cpu());
  r.free();
  EXPECT_ERROR("no device 64", r.call(find("aten::empty", "memory_format"), {5, 1, 2, 0, 0, 8, 64}, 4));
  EXPECT_ERROR("no device", r.call(find("aten::empty", "memory_format"), {5, 1, 2, 0, 0, 8, INT64_MIN}, 4));
  // An operator that returns a list.
  EXPECT_OK(r.call(find("aten::split", "Tensor"), {1, word(x), 2, 1}, 2));
  EXPECT_EQUAL(r.got, 3);
  r.free();
  const rlt_tensor m = h.give(at::empty({2, 4}, at::kFloat).fill_(1)),
                   w = h.give(at::empty({4}, at::kFloat).fill_(1));
  EXPECT_OK(r.call(find("rltrain::add_layer_norm"),
                   {1, word(m), 1, word(m), 1, word(w), 1, word(w), 3, bits(1e-5)}, 5));
  EXPECT_EQUAL(r.got, 4);
  r.free();
}

TEST(abi_op_call_refuses_malformed_tapes) {
  const NoLeaks check;
  Handles h;
  Results r;
  const rlt_tensor x = h.give(at::empty({2, 3}, at::kFloat).fill_(1));
  const rlt_op add = find("aten::add", "Tensor"), sum = find("aten::sum", "dim_IntList");
  EXPECT_ERROR("too short", r.call(add, {}, 2));
  EXPECT_ERROR("too short", r.call(add, {1}, 2));
  EXPECT_ERROR("too short", r.call(add, {1, word(x), 1}, 2));
  EXPECT_ERROR("unknown argument kind 9", r.call(add, {9}, 1));
  EXPECT_ERROR("unknown argument kind -1", r.call(add, {-1}, 1));
  EXPECT_ERROR("does not fit the tape", r.call(sum, {1, word(x), 5, 2, 0}, 2));
  EXPECT_ERROR("does not fit the tape", r.call(sum, {1, word(x), 5, -1}, 2));
  EXPECT_ERROR("does not fit the tape", r.call(sum, {1, word(x), 5, INT64_MAX}, 2));
  EXPECT_ERROR("does not fit the tape", r.call(sum, {1, word(x), 5, INT64_MIN}, 2));
  EXPECT_ERROR("is missing", r.call(add, {1, word(x)}, 1));
  EXPECT_ERROR("takes at most 3", r.call(add, {1, word(x), 1, word(x), 7, 0, 7, 0}, 4));
  EXPECT_ERROR("takes at most 3", r.call(add, {1, word(x)}, -1));
  EXPECT_ERROR("unused words", r.call(add, {1, word(x), 1, word(x), 7}, 2));
  // Argument kinds that the schema does not accept, and tensor handles that are 0.
  EXPECT_ERROR("", r.call(add, {2, 5, 1, word(x)}, 2));
  EXPECT_ERROR("", r.call(add, {0, 1, word(x)}, 2));
  EXPECT_ERROR("", r.call(add, {1, 0, 1, 0}, 2));
  EXPECT_ERROR("", r.call(add, {1, word(x), 1, word(x), 5, 0}, 3));
  EXPECT_EQUAL(r.handles[0], rlt_tensor{0});
}

TEST(abi_op_call_with_too_little_room_gives_nothing) {
  const NoLeaks check;
  Handles h;
  Results r;
  const rlt_tensor m = h.give(at::empty({2, 4}, at::kFloat).fill_(1)),
                   w = h.give(at::empty({4}, at::kFloat).fill_(1));
  for (const int32_t room : {3, 1, 0, -1, INT32_MIN}) {
    EXPECT_ERROR("room for " + std::to_string(room),
                 r.call(find("rltrain::add_layer_norm"),
                        {1, word(m), 1, word(m), 1, word(w), 1, word(w), 3, bits(1e-5)}, 5, room));
    for (const rlt_tensor t : r.handles) EXPECT_EQUAL(t, rlt_tensor{0});
  }
}

TEST(abi_op_call_keeps_to_its_grad_mode) {
  const NoLeaks check;
  Handles h;
  Results r;
  const rlt_tensor x = h.give(at::empty({2}, at::kFloat).fill_(3));
  EXPECT_OK(rlt_tensor_require_grad(x));
  const rlt_op mul = find("aten::mul", "Tensor");
  const std::vector<int64_t> tape{1, word(x), 1, word(x)};
  EXPECT_OK(r.call(mul, tape, 2, 8, RLT_NO_GRAD));
  EXPECT(!rlt::borrow(r.handles[0]).requires_grad());
  EXPECT_ERROR("grad", rlt_tensor_backward(r.handles[0]));
  r.free();
  EXPECT_OK(r.call(mul, tape, 2, 8, RLT_TRAIN));
  EXPECT(rlt::borrow(r.handles[0]).requires_grad());
  EXPECT_ERROR("scalar", rlt_tensor_backward(r.handles[0]));
  Results s;
  EXPECT_OK(s.call(find("aten::sum"), {1, word(r.handles[0])}, 1, 8, RLT_TRAIN));
  EXPECT_OK(rlt_tensor_backward(s.handles[0]));
  EXPECT_ERROR("second time", rlt_tensor_backward(s.handles[0]));
  rlt_tensor grad = 0;
  EXPECT_OK(rlt_tensor_grad(x, &grad));
  EXPECT_EQUAL(rlt::borrow(h.keep(grad))[0].item<float>(), 6.0f);
  EXPECT_OK(rlt_tensor_zero_grad(&x, 1));
  EXPECT_OK(rlt_tensor_grad(x, &grad));
  EXPECT_EQUAL(grad, rlt_tensor{0});
  r.free();
  s.free();
}

// A random tape. Only the words after a tensor kind are handles, and they are always valid: the core cannot
// detect a wild pointer, so a tape with one would crash the test.
std::vector<int64_t> random_tape(Random& random, const std::vector<rlt_tensor>& tensors) {
  const auto any_tensor = [&] {
    return word(tensors[static_cast<size_t>(random.below(static_cast<int64_t>(tensors.size())))]);
  };
  const auto safe = [](int64_t w) { return w == RLT_ARG_TENSOR || w == RLT_ARG_TENSORS ? 2 : w; };
  std::vector<int64_t> tape;
  for (int64_t n = random.below(10); n > 0; --n) {
    switch (random.below(6)) {
      case 0:
      case 1:
        tape.insert(tape.end(), {RLT_ARG_TENSOR, any_tensor()});
        break;
      case 2:
        tape.insert(tape.end(), {RLT_ARG_TENSORS, 2, any_tensor(), any_tensor()});
        break;
      case 3:
        tape.insert(tape.end(), {safe(random.below(9)), safe(random.below(12) - 3)});
        break;
      case 4:
        tape.insert(tape.end(), {RLT_ARG_DOUBLE, safe(bits(static_cast<double>(random.below(4)) / 2))});
        break;
      default:
        tape.push_back(safe(random.word()));
    }
  }
  return tape;
}

TEST(abi_op_call_survives_random_tapes) {
  const NoLeaks check;
  Handles h;
  Random random(51);
  std::vector<rlt_tensor> tensors{0};
  for (const at::Tensor& t :
       {random.normal({6, 8}), random.normal({6, 8}).requires_grad_(true), random.normal({8, 8}),
        random.normal({8, 6}).t(), random.normal({8}), random.normal({6}), random.normal({2, 8}),
        random.normal({8, 2}), random.normal({0, 8}), rlt::test::borders({2, 4}), random.ints(6, 5),
        random.normal({6, 8}).to(at::kDouble), random.normal({2, 6})}) {
    tensors.push_back(h.give(t));
  }
  std::vector<rlt_op> ops;
  for (const char* name :
       {"linear", "lora_linear", "hash_dropout", "varlen_attention", "varlen_attention_backward",
        "add_layer_norm", "add_layer_norm_backward", "segment_mean", "segment_mean_backward"}) {
    ops.push_back(find(("rltrain::" + std::string(name)).c_str()));
  }
  ops.push_back(find("aten::add", "Tensor"));
  ops.push_back(find("aten::sum", "dim_IntList"));
  ops.push_back(find("aten::cat"));
  ops.push_back(find("aten::linear"));
  ops.push_back(find("aten::index_select"));
  ops.push_back(find("aten::log_softmax", "int"));
  int64_t refused = 0, worked = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::vector<int64_t> tape = random_tape(random, tensors);
    const rlt_op op = ops[static_cast<size_t>(random.below(static_cast<int64_t>(ops.size())))];
    Results r;
    const int32_t nargs = static_cast<int32_t>(random.below(10)) - 1;
    const int32_t mode = random.below(2) == 0 ? RLT_TRAIN : RLT_NO_GRAD;
    if (text_of(r.call(op, tape, nargs, static_cast<int32_t>(random.below(6)), mode)).empty()) {
      ++worked;
    } else {
      ++refused;
      for (const rlt_tensor t : r.handles) EXPECT_EQUAL(t, rlt_tensor{0});
    }
    r.free();
  }
  EXPECT(refused > 5000);
  EXPECT(worked > 0);
}

// Valid calls with some arguments swapped: they pass the tape's checks and reach the operators.
TEST(abi_op_call_survives_random_arguments) {
  const NoLeaks check;
  Handles h;
  Random random(52);
  std::vector<int64_t> tensors{0};
  const auto keep = [&](const at::Tensor& t) {
    tensors.push_back(word(h.give(t)));
    return tensors.back();
  };
  const int64_t x = keep(random.normal({6, 8})), square = keep(random.normal({8, 8})),
                vector = keep(random.normal({8})), rows = keep(random.normal({6})),
                a = keep(random.normal({3, 8})), b = keep(random.normal({8, 3})),
                lse = keep(random.normal({2, 6})), cu = keep(rlt::test::borders({2, 4})),
                means = keep(random.normal({2, 8})), angles = keep(random.normal({6, 2})),
                keys = keep(random.ints(6, 5)), rests = keep(rlt::test::vector_of<int32_t>({-1, 0}));
  for (const at::Tensor& t :
       {random.normal({8, 6}).t(), random.normal({16}).slice(0, 0, 16, 2),
        random.normal({12}).slice(0, 0, 12, 2), random.normal({0, 8}), random.normal({0}),
        random.normal({6, 0}), random.normal({6, 3}), rlt::test::borders({2, 4, 0}), rlt::test::borders({6}),
        rlt::test::vector_of<int32_t>({6}).expand({3}), rlt::test::vector_of<int32_t>({0, -9, 6}),
        random.ints(12, 5).slice(0, 0, 12, 2), at::empty({}, at::kInt), random.normal({6, 8}).to(at::kDouble),
        random.normal({6, 8}).to(at::kHalf), random.normal({2, 6, 8}), random.normal({1}).expand({6, 8}),
        random.normal({1}).expand({8})}) {
    keep(t);
  }
  struct Argument {
    int64_t kind, value;
  };
  struct Form {
    const char* name;
    std::vector<Argument> arguments;
  };
  const auto t = [](int64_t handle) { return Argument{RLT_ARG_TENSOR, handle}; };
  const auto i = [](int64_t value) { return Argument{RLT_ARG_INT, value}; };
  const auto d = [](double value) { return Argument{RLT_ARG_DOUBLE, bits(value)}; };
  const Argument yes{RLT_ARG_BOOL, 1};
  const std::vector<Form> forms{
      {"linear", {t(x), t(square), t(vector)}},
      {"lora_linear", {t(x), t(square), t(vector), t(a), t(b), d(2), d(0.5), t(keys), i(1)}},
      {"hash_dropout", {t(x), t(keys), i(3), d(0.25)}},
      {"varlen_attention", {t(x), t(x), t(x), t(cu), i(2), d(0.5), yes, i(3), d(0.5), t(rests), i(6)}},
      {"varlen_attention_backward",
       {t(x), t(x), t(x), t(x), t(x), t(lse), t(cu), i(2), d(0.5), yes, i(3), d(0.5), t(rests), i(6)}},
      {"rms_norm", {t(x), t(vector), d(1e-5), yes}},
      {"rms_norm_backward", {t(x), t(x), t(vector), t(rows), yes}},
      {"rope", {t(x), t(angles), t(angles), i(4), yes}},
      {"gated_act", {t(x), t(x), i(0)}},
      {"gated_act_backward", {t(x), t(x), t(x), i(2)}},
      {"add_layer_norm", {t(x), t(x), t(vector), t(vector), d(1e-5)}},
      {"add_layer_norm_backward", {t(x), t(x), t(vector), t(rows), t(rows)}},
      {"segment_mean", {t(x), t(cu)}},
      {"segment_mean_backward", {t(means), t(cu)}}};
  for (const Form& form : forms) {
    const rlt_op op = find(("rltrain::" + std::string(form.name)).c_str());
    const auto count = static_cast<int64_t>(form.arguments.size());
    int worked = 0;
    for (int round = 0; round < 1000; ++round) {
      std::vector<Argument> arguments = form.arguments;
      for (int64_t n = random.below(4); n > 0; --n) {
        Argument& changed = arguments[static_cast<size_t>(random.below(count))];
        switch (changed.kind) {
          case RLT_ARG_TENSOR:
            changed = t(tensors[static_cast<size_t>(random.below(static_cast<int64_t>(tensors.size())))]);
            break;
          case RLT_ARG_INT:
            changed = i(random.below(2) == 0 ? random.word() : random.below(9) - 2);
            break;
          case RLT_ARG_BOOL:
            changed.value = random.below(2);
            break;
          default:
            changed = d(random.below(4) == 0 ? NAN : static_cast<double>(random.below(9)) / 4 - 1);
        }
        if (random.below(20) == 0) changed = {RLT_ARG_INT, 3};
      }
      std::vector<int64_t> tape;
      for (const Argument& argument : arguments) tape.insert(tape.end(), {argument.kind, argument.value});
      Results r;
      worked += text_of(r.call(op, tape, static_cast<int32_t>(count))).empty();
      r.free();
    }
    if (worked < 200) rlt::test::fail(__FILE__, __LINE__, std::string(form.name) + " hardly ever worked");
  }
}

}  // namespace
