// The C ABI: what it refuses, and that it neither leaks nor throws.
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "abi/abi.h"
#include "check.h"
#include "encoder_fixture.h"
#include "support.h"

namespace {

using rlt::test::kConfig;
using rlt::test::Random;

// The error's text, "" for success; frees it. Every error must be one line that says something.
std::string text_of(rlt_error* e) {
  if (e == nullptr) return "";
  std::string text = rlt_error_text(e);
  rlt_error_free(e);
  EXPECT(!text.empty() && text.find('\n') == std::string::npos);
  return text.empty() ? "empty error" : text;
}

void expect_error(rlt_error* e, const std::string& part, const char* what, int line) {
  const std::string text = text_of(e);
  if (text.empty() || text.find(part) == std::string::npos) {
    rlt::test::fail(__FILE__, line, std::string(what) + ": got \"" + text + "\", want \"" + part + "\"");
  }
}
#define EXPECT_ERROR(part, ...) expect_error(__VA_ARGS__, part, #__VA_ARGS__, __LINE__)
#define EXPECT_OK(...) EXPECT_EQUAL(text_of(__VA_ARGS__), "")

// Fails where a test ends with more handles than it began with.
class NoLeaks {
 public:
  ~NoLeaks() { EXPECT_EQUAL(rlt_live(), start_); }

 private:
  int64_t start_ = rlt_live();
};

// Owns handles.
class Handles {
 public:
  ~Handles() { rlt_tensor_free(all_.data(), static_cast<int32_t>(all_.size())); }
  rlt_tensor keep(rlt_tensor t) {
    all_.push_back(t);
    return t;
  }
  rlt_tensor give(const at::Tensor& t) { return keep(rlt::give(t)); }

 private:
  std::vector<rlt_tensor> all_;
};

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

// Room for results that notices writes past its end.
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

TEST(abi_versions) {
  EXPECT_EQUAL(rlt_abi_version(), RLT_ABI_VERSION);
  EXPECT_EQUAL(std::string(rlt_libtorch_version()).substr(0, 2), "2.");
  EXPECT(std::strlen(rlt_cpu_capability()) > 0);
  EXPECT_ERROR("threads", rlt_init(0));
  EXPECT_ERROR("threads", rlt_init(-3));
  rlt_error_free(nullptr);
}

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
  // cat([x, x], 0); sum(x, [0], keepdim=true, dtype=None); size(x, 0), whose result is no tensor.
  EXPECT_OK(r.call(find("aten::cat"), {6, 2, word(x), word(x), 2, 0}, 2));
  EXPECT_EQUAL(rlt::borrow(r.handles[0]).numel(), 6);
  r.free();
  EXPECT_OK(r.call(find("aten::sum", "dim_IntList"), {1, word(x), 5, 1, 0, 4, 1, 0}, 4));
  EXPECT_EQUAL(rlt::borrow(r.handles[0]).item<float>(), 6.0f);
  r.free();
  EXPECT_OK(r.call(find("aten::size", "int"), {1, word(x), 2, 0}, 2));
  EXPECT_EQUAL(r.got, 0);
  // A list of results.
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
  EXPECT_ERROR("ends early", r.call(add, {}, 2));
  EXPECT_ERROR("ends early", r.call(add, {1}, 2));
  EXPECT_ERROR("ends early", r.call(add, {1, word(x), 1}, 2));
  EXPECT_ERROR("unknown argument kind 8", r.call(add, {8}, 1));
  EXPECT_ERROR("unknown argument kind -1", r.call(add, {-1}, 1));
  EXPECT_ERROR("past the tape", r.call(sum, {1, word(x), 5, 2, 0}, 2));
  EXPECT_ERROR("past the tape", r.call(sum, {1, word(x), 5, -1}, 2));
  EXPECT_ERROR("past the tape", r.call(sum, {1, word(x), 5, INT64_MAX}, 2));
  EXPECT_ERROR("past the tape", r.call(sum, {1, word(x), 5, INT64_MIN}, 2));
  EXPECT_ERROR("is missing", r.call(add, {1, word(x)}, 1));
  EXPECT_ERROR("takes 3", r.call(add, {1, word(x), 1, word(x), 7, 0, 7, 0}, 4));
  EXPECT_ERROR("takes 3", r.call(add, {1, word(x)}, -1));
  EXPECT_ERROR("words left", r.call(add, {1, word(x), 1, word(x), 7}, 2));
  // Kinds that the schema does not want, and tensors that are none.
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

// Words that hold no handle except behind a handle's kind, so that no tape makes the core follow a wild
// pointer: that, alone, the border cannot check.
std::vector<int64_t> random_tape(Random& random, const std::vector<rlt_tensor>& tensors) {
  const auto any_tensor = [&] { return word(tensors[static_cast<size_t>(random.below(
                                    static_cast<int64_t>(tensors.size())))]); };
  const auto safe = [](int64_t w) { return w == RLT_ARG_TENSOR || w == RLT_ARG_TENSORS ? 2 : w; };
  std::vector<int64_t> tape;
  for (int64_t n = random.below(10); n > 0; --n) {
    switch (random.below(6)) {
      case 0:
      case 1: tape.insert(tape.end(), {RLT_ARG_TENSOR, any_tensor()}); break;
      case 2: tape.insert(tape.end(), {RLT_ARG_TENSORS, 2, any_tensor(), any_tensor()}); break;
      case 3: tape.insert(tape.end(), {safe(random.below(9)), safe(random.below(12) - 3)}); break;
      case 4: tape.insert(tape.end(), {RLT_ARG_DOUBLE, safe(bits(static_cast<double>(random.below(4)) / 2))}); break;
      default: tape.push_back(safe(random.word()));
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
  for (const char* name : {"linear", "lora_linear", "hash_dropout", "varlen_attention",
                           "varlen_attention_backward", "add_layer_norm", "add_layer_norm_backward",
                           "segment_mean", "segment_mean_backward"}) {
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

// Good calls with some arguments exchanged: gets past the tape's checks to the operators' own.
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
                means = keep(random.normal({2, 8})), keys = keep(random.ints(6, 5));
  for (const at::Tensor& t :
       {random.normal({8, 6}).t(), random.normal({16}).slice(0, 0, 16, 2), random.normal({12}).slice(0, 0, 12, 2),
        random.normal({0, 8}), random.normal({0}), random.normal({6, 0}), random.normal({6, 3}),
        rlt::test::borders({2, 4, 0}), rlt::test::borders({6}), rlt::test::vector_of<int32_t>({6}).expand({3}),
        rlt::test::vector_of<int32_t>({0, -9, 6}), random.ints(12, 5).slice(0, 0, 12, 2), at::empty({}, at::kInt),
        random.normal({6, 8}).to(at::kDouble), random.normal({6, 8}).to(at::kHalf), random.normal({2, 6, 8}),
        random.normal({1}).expand({6, 8}), random.normal({1}).expand({8})}) {
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
  const std::vector<Form> forms{
      {"linear", {t(x), t(square), t(vector)}},
      {"lora_linear", {t(x), t(square), t(vector), t(a), t(b), d(2), d(0.5), t(keys), i(1)}},
      {"hash_dropout", {t(x), t(keys), i(3), d(0.25)}},
      {"varlen_attention", {t(x), t(x), t(x), t(cu), i(2), d(0.5)}},
      {"varlen_attention_backward", {t(x), t(x), t(x), t(x), t(x), t(lse), t(cu), i(2), d(0.5)}},
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
          case RLT_ARG_INT: changed = i(random.below(2) == 0 ? random.word() : random.below(9) - 2); break;
          default: changed = d(random.below(4) == 0 ? NAN : static_cast<double>(random.below(9)) / 4 - 1);
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

TEST(abi_tensor_from_and_read) {
  const NoLeaks check;
  Handles h;
  const std::array<float, 6> data{1, 2, 3, 4, 5, 6};
  std::array<int64_t, 9> dims{2, 3};
  rlt_tensor t = 0;
  EXPECT_OK(rlt_tensor_from(data.data(), RLT_F32, dims.data(), 2, &t));
  h.keep(t);
  std::array<float, 6> back{};
  EXPECT_OK(rlt_tensor_read(t, RLT_F32, back.data(), sizeof back));
  EXPECT(back == data);
  std::array<int64_t, 6> whole{};
  EXPECT_OK(rlt_tensor_read(t, RLT_I64, whole.data(), sizeof whole));
  EXPECT_EQUAL(whole[5], 6);
  EXPECT_ERROR("24 bytes", rlt_tensor_read(t, RLT_F32, back.data(), 20));
  EXPECT_ERROR("24 bytes", rlt_tensor_read(t, RLT_F32, back.data(), -1));
  EXPECT_ERROR("element type", rlt_tensor_read(t, 99, back.data(), sizeof back));
  // A view is read in its own order, not in its memory's.
  EXPECT_OK(rlt_tensor_read(h.give(rlt::borrow(t).t()), RLT_F32, back.data(), sizeof back));
  EXPECT_EQUAL(back[1], 4.0f);
  std::array<int64_t, 8> shape{};
  int32_t ndim = -1;
  EXPECT_OK(rlt_tensor_shape(t, shape.data(), &ndim));
  EXPECT(ndim == 2 && shape[0] == 2 && shape[1] == 3);

  // Nothing, and a scalar.
  EXPECT_OK(rlt_tensor_from(data.data(), RLT_F32, nullptr, 0, &t));
  EXPECT_EQUAL(rlt::borrow(h.keep(t)).item<float>(), 1.0f);
  dims = {0, 3};
  EXPECT_OK(rlt_tensor_from(nullptr, RLT_I64, dims.data(), 2, &t));
  EXPECT_EQUAL(rlt::borrow(h.keep(t)).numel(), 0);
  EXPECT_OK(rlt_tensor_read(t, RLT_I64, nullptr, 0));
}

TEST(abi_tensor_from_refuses_bad_shapes) {
  const NoLeaks check;
  const float data[4] = {0};
  rlt_tensor t = 0;
  const auto from = [&](std::vector<int64_t> dims, int32_t dtype = RLT_F32) {
    return rlt_tensor_from(data, dtype, dims.data(), static_cast<int32_t>(dims.size()), &t);
  };
  const int64_t huge = int64_t{1} << 40;
  EXPECT_ERROR("impossible shape", from({-1}));
  EXPECT_ERROR("impossible shape", from({2, INT64_MIN}));
  EXPECT_ERROR("impossible shape", from({huge, huge}));
  EXPECT_ERROR("impossible shape", from({INT64_MAX}));
  EXPECT_ERROR("impossible shape", from({INT64_MAX / 2, 1}));
  EXPECT_ERROR("", from({huge, 1 << 20}));  // possible, but not here
  EXPECT_ERROR("0 to 8 dimensions", from(std::vector<int64_t>(9, 1)));
  EXPECT_ERROR("0 to 8 dimensions", rlt_tensor_from(data, RLT_F32, nullptr, -1, &t));
  EXPECT_ERROR("element type 5", from({1}, 5));
  EXPECT_ERROR("element type -1", from({1}, -1));
  EXPECT_EQUAL(t, rlt_tensor{0});
}

TEST(abi_tensor_write) {
  const NoLeaks check;
  Handles h;
  const rlt_tensor t = h.give(at::empty({2, 2}, at::kFloat).requires_grad_(true));
  const std::array<float, 4> data{1, 2, 3, 4};
  EXPECT_OK(rlt_tensor_write(t, data.data(), 4));
  EXPECT_EQUAL(rlt::borrow(t)[1][0].item<float>(), 3.0f);
  EXPECT_ERROR("3 values do not fit", rlt_tensor_write(t, data.data(), 3));
  EXPECT_ERROR("do not fit", rlt_tensor_write(h.give(rlt::borrow(t).detach().t()), data.data(), 4));
  EXPECT_ERROR("do not fit", rlt_tensor_write(h.give(at::empty({4}, at::kLong)), data.data(), 4));
  EXPECT_ERROR("do not fit", rlt_tensor_write(0, data.data(), 4));
}

// A file that is removed at the end of its test.
class File {
 public:
  explicit File(const std::string& bytes) {
    const int fd = mkstemp(path_);
    EXPECT(fd >= 0 && write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    close(fd);
  }
  ~File() { unlink(path_); }
  const char* path() const { return path_; }

 private:
  char path_[32] = "/tmp/rltrain-core-XXXXXX";
};

TEST(abi_tensor_map) {
  const NoLeaks check;
  Handles h;
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::string bytes(static_cast<size_t>(3 * page), '\0');
  const std::array<float, 4> data{1.5f, -2, 3, 4};
  std::memcpy(&bytes[8], data.data(), sizeof data);
  std::memcpy(&bytes[static_cast<size_t>(2 * page - 8)], data.data(), sizeof data);  // over a page's border
  std::memcpy(&bytes[static_cast<size_t>(page + 3)], data.data(), sizeof data);      // between two floats
  const uint16_t bf16 = 0x3fc0;                                                      // 1.5
  std::memcpy(&bytes[40], &bf16, sizeof bf16);
  auto file = std::make_unique<File>(bytes);
  const int64_t dims[] = {2, 2}, one[] = {1};
  rlt_tensor t = 0;
  for (const int64_t offset : {int64_t{8}, 2 * page - 8, page + 3}) {
    EXPECT_OK(rlt_tensor_map(file->path(), offset, RLT_F32, dims, 2, &t));
    h.keep(t);
    std::array<float, 4> back{};
    EXPECT_OK(rlt_tensor_read(t, RLT_F32, back.data(), sizeof back));
    EXPECT(back == data);
  }
  EXPECT_OK(rlt_tensor_map(file->path(), 40, RLT_BF16, one, 1, &t));
  float widened = 0;
  EXPECT_OK(rlt_tensor_read(h.keep(t), RLT_F32, &widened, sizeof widened));
  EXPECT_EQUAL(widened, 1.5f);
  // The last element, and one byte further.
  EXPECT_OK(rlt_tensor_map(file->path(), 3 * page - 4, RLT_F32, one, 1, &t));
  h.keep(t);
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), 3 * page - 3, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), 3 * page, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), INT64_MAX, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), -4, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), INT64_MIN, RLT_F32, one, 1, &t));
  const int64_t long_dims[] = {page, 1}, negative[] = {-1}, overflow[] = {INT64_MAX, 4};
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), 0, RLT_F32, long_dims, 2, &t));
  EXPECT_ERROR("impossible shape", rlt_tensor_map(file->path(), 0, RLT_F32, negative, 1, &t));
  EXPECT_ERROR("impossible shape", rlt_tensor_map(file->path(), 0, RLT_F32, overflow, 2, &t));
  EXPECT_ERROR("element type 99", rlt_tensor_map(file->path(), 0, 99, one, 1, &t));
  EXPECT_ERROR("0 to 8 dimensions", rlt_tensor_map(file->path(), 0, RLT_F32, dims, 9, &t));
  EXPECT_ERROR("/nowhere", rlt_tensor_map("/nowhere/x", 0, RLT_F32, one, 1, &t));
  EXPECT_ERROR("/tmp", rlt_tensor_map("/tmp", 0, RLT_F32, one, 1, &t));
  // What is mapped outlives the file's name.
  EXPECT_OK(rlt_tensor_map(file->path(), 8, RLT_F32, dims, 2, &t));
  h.keep(t);
  file.reset();
  EXPECT_EQUAL(rlt::borrow(t)[0][0].item<float>(), 1.5f);
}

TEST(abi_tensor_map_of_an_empty_file) {
  const NoLeaks check;
  const File file("");
  const int64_t one[] = {1}, none[] = {0, 5};
  rlt_tensor t = 0;
  EXPECT_ERROR("past the end", rlt_tensor_map(file.path(), 0, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file.path(), 1, RLT_F32, none, 2, &t));
  EXPECT_OK(rlt_tensor_map(file.path(), 0, RLT_F32, none, 2, &t));
  EXPECT_EQUAL(rlt::borrow(t).size(1), 5);
  rlt_tensor_free(&t, 1);
}

TEST(abi_handles_of_nothing_are_errors) {
  const NoLeaks check;
  float value = 0;
  rlt_tensor t = 0;
  EXPECT_ERROR("", rlt_tensor_read(0, RLT_F32, &value, 4));
  EXPECT_ERROR("", rlt_tensor_require_grad(0));
  EXPECT_ERROR("", rlt_tensor_backward(0));
  EXPECT_ERROR("", rlt_tensor_grad(0, &t));
  EXPECT_EQUAL(t, rlt_tensor{0});
  const rlt_tensor none[2] = {0, 0};
  rlt_tensor_free(none, 2);
  rlt_tensor_free(nullptr, 0);
}

TEST(abi_errors_are_one_line) {
  for (const std::string& text : {std::string("one\ntwo"), std::string("\n\none\ntwo"), std::string("one")}) {
    try {
      throw std::runtime_error(text);
    } catch (...) {
      EXPECT_EQUAL(text_of(rlt::current_exception()), "one");
    }
    try {
      TORCH_CHECK(false, text);
    } catch (...) {
      EXPECT_EQUAL(text_of(rlt::current_exception()), "one");
    }
  }
  try {
    throw std::bad_alloc();
  } catch (...) {
    EXPECT_EQUAL(text_of(rlt::current_exception()), "out of memory");
  }
  try {
    throw 7;
  } catch (...) {
    EXPECT_EQUAL(text_of(rlt::current_exception()), "unknown C++ exception");
  }
  try {
    throw std::runtime_error("");
  } catch (...) {
    EXPECT(!text_of(rlt::current_exception()).empty());
  }
}

// ---- model ----

struct Model {
  explicit Model(Random& random) {
    std::vector<const char*> names;
    std::vector<rlt_tensor> tensors;
    const rlt::nn::Weights weights = rlt::test::random_weights(random);
    for (const auto& [name, w] : weights) {
      names.push_back(name.c_str());
      tensors.push_back(handles.give(w));
    }
    EXPECT_OK(rlt_model_new(&kConfig, names.data(), tensors.data(), static_cast<int32_t>(names.size()), &model));
  }
  ~Model() { rlt_model_free(model); }

  Handles handles;
  rlt_model* model = nullptr;
};

TEST(abi_model_forward) {
  const NoLeaks check;
  Random random(61);
  Model m(random);
  Handles h;
  const rlt_tensor a = h.give(random.normal({2, 24}).requires_grad_(true)),
                   b = h.give(random.normal({24, 2}).requires_grad_(true));
  EXPECT_OK(rlt_model_adapt(m.model, "encoder.layer.1.attention.self.value", a, b, 2));
  EXPECT_ERROR("no linear layer", rlt_model_adapt(m.model, "pooler.dense", a, b, 2));
  EXPECT_ERROR("do not fit", rlt_model_adapt(m.model, "encoder.layer.1.output.dense", a, b, 2));
  EXPECT_ERROR("do not fit", rlt_model_adapt(m.model, "encoder.layer.1.attention.self.value", 0, b, 2));

  rlt_model_input input{};
  input.tokens = h.give(rlt::test::vector_of<int64_t>({0, 49, 3}));
  input.positions = h.give(rlt::test::vector_of<int64_t>({0, 1, 0}));
  input.cu_seqlens = h.give(rlt::test::borders({2, 1}));
  input.adapter = 1;
  rlt_tensor hidden = 0;
  EXPECT_OK(rlt_model_forward(m.model, RLT_NO_GRAD, &input, &hidden));
  EXPECT_EQUAL(rlt::borrow(hidden).sizes(), c10::IntArrayRef({3, 24}));
  EXPECT(!rlt::borrow(hidden).requires_grad());
  rlt_tensor_free(&hidden, 1);
  EXPECT_OK(rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden));
  EXPECT(rlt::borrow(hidden).requires_grad());
  rlt_tensor_free(&hidden, 1);
  input.adapter = 0;
  EXPECT_OK(rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden));
  EXPECT(!rlt::borrow(hidden).requires_grad());
  rlt_tensor_free(&hidden, 1);
}

TEST(abi_model_forward_refuses_bad_batches) {
  const NoLeaks check;
  Random random(62);
  Model m(random);
  Handles h;
  const rlt_tensor a = h.give(random.normal({2, 24})), b = h.give(random.normal({24, 2}));
  EXPECT_OK(rlt_model_adapt(m.model, "encoder.layer.0.attention.self.query", a, b, 1));
  using Ids = std::vector<int64_t>;
  const auto ids = [&](const Ids& values) { return h.give(rlt::test::vector_of(values)); };
  const rlt_model_input good{ids({0, 49, 3}), ids({0, 1, 0}), h.give(rlt::test::borders({2, 1})), 1, 0, 0};
  rlt_tensor hidden = 0;
  const auto run = [&](rlt_tensor rlt_model_input::* field, rlt_tensor value) {
    rlt_model_input input = good;
    input.*field = value;
    return rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden);
  };
  const auto tokens = &rlt_model_input::tokens, positions = &rlt_model_input::positions,
             cu = &rlt_model_input::cu_seqlens;
  EXPECT_ERROR("tokens: 50 at 1", run(tokens, ids({0, 50, 3})));
  EXPECT_ERROR("tokens: -1 at 2", run(tokens, ids({0, 1, -1})));
  EXPECT_ERROR("tokens", run(tokens, ids({0, INT64_MAX, 1})));
  EXPECT_ERROR("positions: want 2", run(tokens, ids({0, 1})));
  EXPECT_ERROR("tokens: want", run(tokens, 0));
  EXPECT_ERROR("tokens: want", run(tokens, h.give(rlt::test::vector_of<int32_t>({0, 1, 2}))));
  EXPECT_ERROR("tokens: want", run(tokens, h.give(random.normal({3}))));
  EXPECT_ERROR("tokens: want", run(tokens, h.give(random.ints(3, 5).view({3, 1}))));
  EXPECT_ERROR("tokens: want", run(tokens, h.give(random.ints(6, 5).slice(0, 0, 6, 2))));
  EXPECT_ERROR("positions: 32 at 1", run(positions, ids({0, 32, 0})));
  EXPECT_ERROR("positions: -7 at 0", run(positions, ids({-7, 0, 0})));
  EXPECT_ERROR("positions: want 3", run(positions, ids({0, 1})));
  EXPECT_ERROR("positions: want 3", run(positions, 0));
  EXPECT_ERROR("run from 0 to 3", run(cu, h.give(rlt::test::borders({2}))));
  EXPECT_ERROR("run from 0 to 3", run(cu, h.give(rlt::test::borders({2, 3}))));
  EXPECT_ERROR("falls", run(cu, h.give(rlt::test::vector_of<int32_t>({0, 4, 3}))));
  EXPECT_ERROR("int32", run(cu, ids({0, 3})));
  EXPECT_ERROR("", run(cu, 0));
  rlt_model_input input = good;
  for (const double p : {1.0, 1.5, -0.5, static_cast<double>(NAN)}) {
    input.dropout = p;
    input.row_keys = ids({1, 2, 3});
    EXPECT_ERROR("[0, 1)", rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden));
  }
  input.dropout = 0.5;
  for (const rlt_tensor keys : {rlt_tensor{0}, ids({1, 2}), good.cu_seqlens}) {
    input.row_keys = keys;
    EXPECT_ERROR("row_keys", rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden));
  }
  EXPECT_EQUAL(hidden, rlt_tensor{0});
}

TEST(abi_model_new_refuses_bad_configs) {
  const NoLeaks check;
  rlt_model* model = nullptr;
  EXPECT_ERROR("embeddings.word_embeddings.weight is missing", rlt_model_new(&kConfig, nullptr, nullptr, 0, &model));
  rlt_model_config config = kConfig;
  config.heads = 7;
  EXPECT_ERROR("heads", rlt_model_new(&config, nullptr, nullptr, 0, &model));
  Random random(63);
  Handles h;
  std::vector<const char*> names;
  std::vector<rlt_tensor> tensors;
  const rlt::nn::Weights weights = rlt::test::random_weights(random);
  for (const auto& [name, w] : weights) {
    names.push_back(name.c_str());
    tensors.push_back(h.give(w));
  }
  const auto n = static_cast<int32_t>(names.size());
  for (const int64_t layers : {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{3}}) {
    config = kConfig;
    config.layers = layers;
    EXPECT_ERROR("", rlt_model_new(&config, names.data(), tensors.data(), n, &model));
  }
  EXPECT(model == nullptr);
  rlt_model_free(nullptr);
}

}  // namespace
