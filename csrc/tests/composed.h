#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace rlt::test {

// From here on the operators of the CPU are those for CUDA, on tensors of the CPU, and may be ten times as
// far from what is wanted: they round where the CPU's kernels keep sums of doubles.
void use_composed_operators();
// From here on device() is the first GPU, and call_cuda computes there. False where there is none.
bool use_device();
// Runs an operator for CUDA on arguments of the CPU, which are copied to device(), and results back.
void call_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Whether a test is about what operators and models give, not about how the CPU computes it.
bool about_operators(const std::string& file, const std::string& test);

// Whether a test compares the device with the CPU by itself.
bool about_the_device(const std::string& file, const std::string& test);

}  // namespace rlt::test
