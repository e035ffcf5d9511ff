// Replaces the CPU operators by the CUDA operators, which are composed of libtorch's, so that the CPU tests
// also cover those: values, gradients through autograd, and models.
#include "composed.h"

#include <ATen/Context.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/engine/runner.h"
#include "nn/joined.h"
#include "support.h"

namespace rlt::test {
namespace {

void redirect(const c10::OperatorHandle& op, torch::jit::Stack* stack) { call_cuda(op, stack); }

// A copy of t on a device, with its strides.
at::Tensor copied(const at::Tensor& t, const at::Device& to) {
  const auto all = static_cast<int64_t>(t.storage().nbytes() / t.itemsize());
  return t.as_strided({all}, {1}, 0).to(to).as_strided(t.sizes(), t.strides(), t.storage_offset());
}

}  // namespace

void call_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; device().is_cuda() && i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    const std::string& name = arguments[i].name();
    const bool of_the_host = name == "cu_seqlens" || name == "continues";
    if (value.isTensor() && value.toTensor().defined() && !of_the_host)
      value = copied(value.toTensor(), device());
  }
  c10::Dispatcher::singleton().callBoxedForDispatchKey(op, c10::DispatchKey::CUDA, stack);
  for (size_t i = 0; device().is_cuda() && i < op.schema().returns().size(); ++i) {
    c10::IValue& value = (*stack)[stack->size() - 1 - i];
    if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().cpu();
  }
}

bool use_device() {
  if (!at::globalContext().hasCUDA()) return false;
  device() = at::Device(at::kCUDA, 0);
  engine::register_runner(c10::DeviceType::CUDA, &cuda::make_gpu_runner);
  return true;
}

void use_composed_operators() {
  tolerance = 10;
  engine::register_runner(c10::DeviceType::CPU, [](const nn::Transformer& decoder) {
    return std::unique_ptr<engine::Runner>(std::make_unique<cuda::GpuRunner>(decoder, device()));
  });
  nn::joins_on_cpu = device().is_cpu();
  // Static, because its registrations end when it is destroyed.
  static torch::Library library(torch::Library::IMPL, "rltrain", c10::DispatchKey::CPU, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("rltrain::", 0) != 0) continue;
    const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    library.impl(name.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&redirect>());
  }
}

bool about_the_device(const std::string& file, const std::string&) {
  return file.compare(file.rfind('/') + 1, 5, "cuda_") == 0;
}

bool about_operators(const std::string& file, const std::string& test) {
  const std::vector<std::string> files{"attention", "block", "causal_attention", "engine", "head", "linear",
                                       "norm_pool", "step",  "transformer"};
  const std::vector<std::string> of_the_cpu{
      // These operators accept other strides and types, and word their errors differently.
      "attention_refuses_what_does_not_fit", "causal_attention_refuses_what_does_not_fit",
      "rms_norm_of_a_frozen_weight_or_input", "head_refuses_what_does_not_fit",
      "linear_refuses_what_does_not_fit", "linear_gradients_refuse_what_does_not_fit",
      "hash_dropout_refuses_what_does_not_fit", "add_layer_norm_refuses_what_does_not_fit",
      "linears_equal_their_layers",  // only the CPU has them
      "segment_mean_refuses_what_does_not_fit", "norm_and_pool_take_expanded_gradients",
      // The products of BLAS libraries depend on the number of rows.
      "engine_gives_the_same_bits_in_any_batch", "engine_splits_large_models_by_columns",
      // These operators compute all logits of a block of rows at once.
      "head_memory_does_not_grow_with_the_vocabulary"};
  // A GPU rounds both sides of a product to the weight's type; the tests in cuda_ops allow for that.
  const std::vector<std::string> of_two_bytes{"linear_of_weights_of_two_bytes",
                                              "lora_linear_on_a_weight_of_two_bytes",
                                              "head_with_weights_of_two_bytes"};
  const size_t begin = file.rfind('/') + 1, end = file.rfind("_test.cc");
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (device().is_cuda() && has(of_two_bytes, test)) return false;
  return end != std::string::npos && has(files, file.substr(begin, end - begin)) && !has(of_the_cpu, test);
}

}  // namespace rlt::test
