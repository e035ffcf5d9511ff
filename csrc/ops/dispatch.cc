// Typed entry points: one dispatcher look-up an operator, kept for the life of the process.
#include <ATen/core/dispatch/Dispatcher.h>

#include "ops/block.h"
#include "ops/head.h"
#include "ops/linear.h"
#include "ops/packed.h"
#include "ops/quant.h"

namespace rlt {
namespace {

template <typename Signature>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  static const auto op = find<decltype(linear)>("rltrain::linear");
  return op.call(x, w, bias);
}

std::tuple<at::Tensor, at::Tensor> lora_linear(const at::Tensor& x, const at::Tensor& w,
                                               const OptionalTensor& bias, const at::Tensor& a,
                                               const at::Tensor& b, double scale, double p,
                                               const OptionalTensor& row_keys, int64_t layer) {
  static const auto op = find<decltype(lora_linear)>("rltrain::lora_linear");
  return op.call(x, w, bias, a, b, scale, p, row_keys, layer);
}

at::Tensor quantize(const at::Tensor& w, int64_t quant) {
  static const auto op = find<decltype(quantize)>("rltrain::quantize");
  return op.call(w, quant);
}

at::Tensor dequantize(const at::Tensor& rows, int64_t quant, int64_t in,
                      std::optional<at::ScalarType> dtype) {
  static const auto op = find<decltype(dequantize)>("rltrain::dequantize");
  return op.call(rows, quant, in, dtype);
}

at::Tensor linear_input_grad(const at::Tensor& grad, const at::Tensor& w) {
  static const auto op = find<decltype(linear_input_grad)>("rltrain::linear_input_grad");
  return op.call(grad, w);
}

at::Tensor linear_weight_grad(const at::Tensor& grad, const at::Tensor& x) {
  static const auto op = find<decltype(linear_weight_grad)>("rltrain::linear_weight_grad");
  return op.call(grad, x);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lora_grads(const at::Tensor& grad, const at::Tensor& x,
                                                          const at::Tensor& w, const at::Tensor& a,
                                                          const at::Tensor& b, const at::Tensor& low,
                                                          double scale, double p,
                                                          const OptionalTensor& row_keys, int64_t layer,
                                                          bool needs_x) {
  static const auto op = find<decltype(lora_grads)>("rltrain::lora_grads");
  return op.call(grad, x, w, a, b, low, scale, p, row_keys, layer, needs_x);
}

at::Tensor hash_dropout(const at::Tensor& x, const at::Tensor& row_keys, int64_t layer, double p) {
  static const auto op = find<decltype(hash_dropout)>("rltrain::hash_dropout");
  return op.call(x, row_keys, layer, p);
}

std::tuple<at::Tensor, at::Tensor> varlen_attention(const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v, const at::Tensor& cu_seqlens,
                                                    int64_t heads, double scale, bool causal, int64_t window,
                                                    double softcap,
                                                    const std::optional<at::Tensor>& continues,
                                                    std::optional<at::ScalarType> compute) {
  static const auto op = find<decltype(varlen_attention)>("rltrain::varlen_attention");
  return op.call(q, k, v, cu_seqlens, heads, scale, causal, window, softcap, continues, compute);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> varlen_attention_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t heads, double scale,
    bool causal, int64_t window, double softcap, const std::optional<at::Tensor>& continues,
    std::optional<at::ScalarType> compute) {
  static const auto op = find<decltype(varlen_attention_backward)>("rltrain::varlen_attention_backward");
  return op.call(grad, q, k, v, out, lse, cu_seqlens, heads, scale, causal, window, softcap, continues,
                 compute);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x,
                                                                          const at::Tensor& residual,
                                                                          const at::Tensor& weight,
                                                                          const at::Tensor& bias,
                                                                          double eps) {
  static const auto op = find<decltype(add_layer_norm)>("rltrain::add_layer_norm");
  return op.call(x, residual, weight, bias, eps);
}

at::Tensor add_layer_norm_backward(const at::Tensor& grad, const at::Tensor& sum, const at::Tensor& weight,
                                   const at::Tensor& mean, const at::Tensor& rstd) {
  static const auto op = find<decltype(add_layer_norm_backward)>("rltrain::add_layer_norm_backward");
  return op.call(grad, sum, weight, mean, rstd);
}

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                                            bool plus_one) {
  static const auto op = find<decltype(rms_norm)>("rltrain::rms_norm");
  return op.call(x, weight, eps, plus_one);
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, bool plus_one) {
  static const auto op = find<decltype(rms_norm_backward)>("rltrain::rms_norm_backward");
  return op.call(grad, x, weight, rstd, plus_one);
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t head_dim,
                bool inverse) {
  static const auto op = find<decltype(rope)>("rltrain::rope");
  return op.call(x, cos, sin, head_dim, inverse);
}

at::Tensor gated_act(const at::Tensor& gate, const at::Tensor& up, int64_t activation) {
  static const auto op = find<decltype(gated_act)>("rltrain::gated_act");
  return op.call(gate, up, activation);
}

std::tuple<at::Tensor, at::Tensor> gated_act_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                      const at::Tensor& up, int64_t activation) {
  static const auto op = find<decltype(gated_act_backward)>("rltrain::gated_act_backward");
  return op.call(grad, gate, up, activation);
}

at::Tensor segment_mean(const at::Tensor& x, const at::Tensor& cu_seqlens) {
  static const auto op = find<decltype(segment_mean)>("rltrain::segment_mean");
  return op.call(x, cu_seqlens);
}

at::Tensor segment_mean_backward(const at::Tensor& grad, const at::Tensor& cu_seqlens) {
  static const auto op = find<decltype(segment_mean_backward)>("rltrain::segment_mean_backward");
  return op.call(grad, cu_seqlens);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> token_logprobs(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias, const at::Tensor& targets,
    double temperature, double softcap, bool slope) {
  static const auto op = find<decltype(token_logprobs)>("rltrain::token_logprobs");
  return op.call(hidden, weight, bias, targets, temperature, softcap, slope);
}

at::Tensor token_logprobs_hidden_grad(const at::Tensor& grad_logprobs, const at::Tensor& grad_entropy,
                                      const at::Tensor& hidden, const at::Tensor& weight,
                                      const OptionalTensor& bias, const at::Tensor& targets,
                                      const at::Tensor& entropy, const at::Tensor& lse, double temperature,
                                      double softcap) {
  static const auto op = find<decltype(token_logprobs_hidden_grad)>("rltrain::token_logprobs_hidden_grad");
  return op.call(grad_logprobs, grad_entropy, hidden, weight, bias, targets, entropy, lse, temperature,
                 softcap);
}

std::tuple<at::Tensor, at::Tensor> token_logprobs_weight_grad(
    const at::Tensor& grad_logprobs, const at::Tensor& grad_entropy, const at::Tensor& hidden,
    const at::Tensor& weight, const OptionalTensor& bias, const at::Tensor& targets,
    const at::Tensor& entropy, const at::Tensor& lse, double temperature, double softcap) {
  static const auto op = find<decltype(token_logprobs_weight_grad)>("rltrain::token_logprobs_weight_grad");
  return op.call(grad_logprobs, grad_entropy, hidden, weight, bias, targets, entropy, lse, temperature,
                 softcap);
}

}  // namespace rlt
