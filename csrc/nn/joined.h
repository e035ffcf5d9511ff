// Layers of one input as one product with gradients, for devices that wait for each operator's start longer
// than for most operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "nn/linear.h"

namespace rlt::nn {

// For tests: the CPU joins layers as a GPU does.
inline bool joins_on_cpu = false;

class JoinedLinear {
 public:
  // Borrows layers, which must outlive it; none, for a block without them, fit and have nothing to copy.
  explicit JoinedLinear(std::vector<const Linear*> layers) : layers_(std::move(layers)) {}

  // Whether it can stand for its layers: their weights are frozen and of one type, float32 or bfloat16.
  bool fits() const;
  // Lists the adapters' parameters that have changed since the last call and what to copy them to, in the
  // weights' type, before a pass reads them. One call, with its copies, at a time.
  void list_copies(std::vector<at::Tensor>& to, std::vector<at::Tensor>& from) const;
  // Each layer's outputs [N, out] float32; x [N, in]. Backward refuses parameters that have changed since.
  std::vector<at::Tensor> forward(const at::Tensor& x, bool adapted) const;

 private:
  std::vector<const Linear*> layers_;
  mutable std::mutex mutex_;
  // [R, in] of all adapted layers; [out, r] of each, undefined without an adapter; [Σ out] or undefined.
  mutable at::Tensor a_, bias_;
  mutable std::vector<at::Tensor> b_;
  // The parameters that a_ and b_ are copies of, with their versions.
  mutable std::vector<std::pair<at::Tensor, int64_t>> copied_;
};

}  // namespace rlt::nn
