// Log-probabilities of given tokens from hidden states and an output weight, without their logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "ops/linear.h"

namespace rlt {

// Results are logprobs, entropy, rank, lse, slope; slope is empty unless asked for.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> token_logprobs(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias, const at::Tensor& targets,
    double temperature, double softcap, bool slope);
at::Tensor token_logprobs_hidden_grad(const at::Tensor& grad_logprobs, const at::Tensor& grad_entropy,
                                      const at::Tensor& hidden, const at::Tensor& weight,
                                      const OptionalTensor& bias, const at::Tensor& targets,
                                      const at::Tensor& entropy, const at::Tensor& lse, double temperature,
                                      double softcap);
std::tuple<at::Tensor, at::Tensor> token_logprobs_weight_grad(
    const at::Tensor& grad_logprobs, const at::Tensor& grad_entropy, const at::Tensor& hidden,
    const at::Tensor& weight, const OptionalTensor& bias, const at::Tensor& targets,
    const at::Tensor& entropy, const at::Tensor& lse, double temperature, double softcap);

}  // namespace rlt
