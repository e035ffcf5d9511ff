#pragma once

#include <string>

namespace rlt::test {

// From here on the operators of the CPU are those for CUDA, on tensors of the CPU, and may be ten times as
// far from what is wanted: they round where the CPU's kernels keep sums of doubles.
void use_composed_operators();
// Whether a test is about what operators and models give, not about how the CPU computes it.
bool about_operators(const std::string& file, const std::string& test);

}  // namespace rlt::test
