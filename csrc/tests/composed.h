#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace rlt::test {

// From here on the CPU operators are the CUDA operators, on CPU tensors, and limits are ten times as wide:
// these operators round where the CPU kernels sum in double.
void use_composed_operators();
// Makes device() the first GPU, where call_cuda computes. Returns false if there is no GPU.
bool use_device();
// Runs a CUDA operator: copies CPU arguments to device() and the results back.
void call_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Whether a test checks the results of operators and models, not how the CPU computes them.
bool about_operators(const std::string& file, const std::string& test);

// Whether a test compares the device with the CPU itself.
bool about_the_device(const std::string& file, const std::string& test);

}  // namespace rlt::test
