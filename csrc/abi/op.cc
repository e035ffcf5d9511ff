// Calls any operator through the boxed dispatcher. The schema supplies types and defaults, so operators need
// no bindings.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <optional>

#include "abi/abi.h"

namespace rlt {
namespace {

// Reads a tape word by word, and throws before it would read past the end.
class TapeReader {
 public:
  TapeReader(const int64_t* tape, int32_t words) : next_(tape), end_(tape + words) {}

  int64_t left() const { return end_ - next_; }
  int64_t word() {
    TORCH_CHECK(next_ < end_, "operator call: the argument tape is too short");
    return *next_++;
  }
  double real() {
    const int64_t bits = word();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  c10::IntArrayRef list() {
    const int64_t n = word();
    TORCH_CHECK(n >= 0 && n <= left(), "operator call: a list of ", n, " items does not fit the tape");
    const c10::IntArrayRef values(next_, static_cast<size_t>(n));
    next_ += n;
    return values;
  }

 private:
  const int64_t* next_;
  const int64_t* end_;
};

c10::IValue read_argument(TapeReader& tape) {
  const int64_t kind = tape.word();
  switch (kind) {
    case RLT_ARG_NONE:
      return {};
    case RLT_ARG_TENSOR:
      return borrow(static_cast<rlt_tensor>(tape.word()));
    case RLT_ARG_INT:
      return tape.word();
    case RLT_ARG_DOUBLE:
      return tape.real();
    case RLT_ARG_BOOL:
      return tape.word() != 0;
    case RLT_ARG_INTS:
      return tape.list();
    case RLT_ARG_TENSORS: {
      c10::List<at::Tensor> tensors;
      for (const int64_t handle : tape.list()) {
        tensors.push_back(borrow(static_cast<rlt_tensor>(handle)));
      }
      return tensors;
    }
    case RLT_ARG_SCALAR:
      return at::Scalar(tape.real());
    case RLT_ARG_DEVICE: {
      const int64_t device = tape.word();
      TORCH_CHECK(device >= INT32_MIN && device <= INT32_MAX, "operator call: no device ", device);
      return device_of(static_cast<int32_t>(device));
    }
  }
  TORCH_CHECK(false, "operator call: unknown argument kind ", kind);
}

// Releases the tensors to the caller only after checking that all of them fit.
void return_tensors(torch::jit::Stack& stack, const std::string& name, rlt_tensor* rets, int32_t nrets,
                    int32_t* got) {
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      results.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) results.push_back(t);
    }
  }
  TORCH_CHECK(nrets >= 0 && results.size() <= static_cast<size_t>(nrets), name, ": ", results.size(),
              " results do not fit the room for ", nrets);
  *got = static_cast<int32_t>(results.size());
  for (size_t i = 0; i < results.size(); ++i) rets[i] = give(std::move(results[i]));
}

// Bumps the version of each tensor in the lists that an operator modifies. libtorch does so for single
// tensors, but not for the lists of its fused optimisers; backward would then miss that a parameter changed.
void count_changes(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !stack[i].isTensorList()) continue;
    for (const at::Tensor& t : stack[i].toTensorVector()) {
      if (t.defined() && !t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
    }
  }
}

void call(const c10::OperatorHandle& op, int32_t mode, TapeReader tape, int32_t nargs, rlt_tensor* rets,
          int32_t nrets, int32_t* got) {
  const c10::FunctionSchema& schema = op.schema();
  const auto& formals = schema.arguments();
  TORCH_CHECK(nargs >= 0 && static_cast<size_t>(nargs) <= formals.size(), schema.name(), ": got ", nargs,
              " arguments, takes at most ", formals.size());
  torch::jit::Stack stack;
  stack.reserve(formals.size());
  for (int32_t i = 0; i < nargs; ++i) stack.push_back(read_argument(tape));
  TORCH_CHECK(tape.left() == 0, schema.name(), ": ", tape.left(), " unused words on the argument tape");
  for (size_t i = stack.size(); i < formals.size(); ++i) {
    TORCH_CHECK(formals[i].default_value(), schema.name(), ": argument ", formals[i].name(), " is missing");
    stack.push_back(*formals[i].default_value());
  }
  const at::AutoGradMode grad(mode == RLT_TRAIN);
  count_changes(schema, stack);
  op.callBoxed(stack);
  return_tensors(stack, schema.name(), rets, nrets, got);
}

}  // namespace
}  // namespace rlt

rlt_error* rlt_op_find(const char* name, const char* overload, rlt_op* op) {
  return rlt::guard([&] {
    static std::mutex mutex;
    static auto* const found = new std::deque<c10::OperatorHandle>;  // addresses stay valid
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const std::lock_guard<std::mutex> lock(mutex);
    found->push_back(handle);
    *op = reinterpret_cast<rlt_op>(&found->back());
  });
}

rlt_error* rlt_op_call(rlt_op op, int32_t mode, const int64_t* tape, int32_t words, int32_t nargs,
                       rlt_tensor* rets, int32_t nrets, int32_t* got) {
  return rlt::guard([&] {
    rlt::call(*reinterpret_cast<const c10::OperatorHandle*>(op), mode, rlt::TapeReader(tape, words), nargs,
              rets, nrets, got);
  });
}
