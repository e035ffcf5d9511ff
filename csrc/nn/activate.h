// The non-linearities of an MLP.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include "rltrain.h"

namespace rlt::nn {

inline at::Tensor activate(int32_t activation, const at::Tensor& x) {
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

}  // namespace rlt::nn
