// Random tensors and distances between tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/kernels.h"
#include "rltrain.h"

namespace rlt::test {

// The device on which device-independent tests allocate their tensors.
inline at::Device& device() {
  static at::Device place(at::kCPU);
  return place;
}

// Reproducible random tensors, normal or integer.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  at::Tensor normal(c10::IntArrayRef sizes, double spread = 1, double centre = 0) {
    at::Tensor t = at::empty(sizes, at::kFloat);
    std::normal_distribution<double> draw(centre, spread);
    float* values = t.mutable_data_ptr<float>();
    for (int64_t i = 0; i < t.numel(); ++i) values[i] = static_cast<float>(draw(engine_));
    return t;
  }
  // Values are in [0, limit).
  at::Tensor ints(int64_t n, int64_t limit) {
    at::Tensor t = at::empty({n}, at::kLong);
    for (int64_t i = 0; i < n; ++i) t.mutable_data_ptr<int64_t>()[i] = below(limit);
    return t;
  }
  int64_t below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(engine_); }
  int64_t word() { return static_cast<int64_t>(engine_()); }

 private:
  std::mt19937_64 engine_;
};

template <typename T>
at::Tensor vector_of(const std::vector<T>& values) {
  at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, c10::CppTypeToScalarType<T>::value);
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<T>());
  return t;
}

// An activation as ATen has it.
inline at::Tensor plain_activation(int64_t activation, const at::Tensor& x) {
  switch (activation) {
    case RLT_ACT_SILU:
      return at::silu(x);
    case RLT_ACT_GELU:
      return at::gelu(x);
    case RLT_ACT_GELU_TANH:
      return at::gelu(x, "tanh");
    default:
      return at::relu(x);
  }
}

// Boundaries (cu_seqlens) of packed sequences of these lengths.
inline at::Tensor borders(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> cu{0};
  for (const int64_t length : lengths) cu.push_back(cu.back() + static_cast<int32_t>(length));
  return vector_of(cu);
}

inline int64_t total(const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (const int64_t length : lengths) sum += length;
  return sum;
}

// Rounds t to a weight's type, as products do that round both operands.
inline at::Tensor held_by(at::ScalarType type, const at::Tensor& t) {
  return type == at::kFloat ? t : t.to(type).to(at::kFloat);
}

// Whether a product with a weight of this type rounds its other operand: on a GPU always, on the CPU if the
// processor has instructions for bfloat16 products.
inline bool rounds(at::ScalarType type) {
  if (device().is_cuda()) return type != at::kFloat;
  return exact() && type == at::kBFloat16 && kernels().multiply_pairs;
}

// A leaf that requires a gradient and holds a copy of t.
inline at::Tensor leaf(const at::Tensor& t, at::ScalarType type = at::kFloat) {
  return t.detach().to(type, false, /*copy=*/true).requires_grad_(true);
}

inline double largest(const at::Tensor& t) {
  return t.numel() == 0 ? 0 : t.detach().to(at::kDouble).abs().max().item<double>();
}

// max |got - want|; infinite if the shapes differ, NaN if an element is NaN.
inline double distance(const at::Tensor& got, const at::Tensor& want) {
  if (!got.defined() || got.sizes() != want.sizes()) return std::numeric_limits<double>::infinity();
  return largest(got.detach().to(at::kDouble).sub(want.detach().to(at::kDouble)));
}

// distance divided by the largest magnitude in want.
inline double relative(const at::Tensor& got, const at::Tensor& want) {
  return distance(got, want) / std::max(largest(want), std::numeric_limits<double>::min());
}

inline bool finite(const at::Tensor& t) { return t.defined() && t.isfinite().all().item<bool>(); }

// Bitwise equality; at::equal differs for NaN and -0.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace rlt::test
