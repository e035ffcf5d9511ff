// The linear layer and the adapter on it, of libtorch's products. A weight of two bytes an element is widened
// for the one product that needs it, so results are those of the CPU up to the order of sums.
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "ops/linear.h"

namespace rlt {
namespace {

constexpr int64_t kWord = 0xffffffff;

void check_linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  TORCH_CHECK(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1) &&
                  (!bias || (bias->dim() == 1 && bias->size(0) == w.size(0))),
              "linear: x ", x.sizes(), ", w ", w.sizes(), " and the bias do not fit");
  TORCH_CHECK(x.scalar_type() == at::kFloat && (!bias || bias->scalar_type() == at::kFloat),
              "linear: x and the bias must be float32, got x ", x.scalar_type());
}

void check_adapter(const at::Tensor& w, const at::Tensor& a, const at::Tensor& b, double p,
                   const OptionalTensor& row_keys) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == w.size(1) && b.size(0) == w.size(0) &&
                  a.size(0) == b.size(1),
              "lora_linear: a ", a.sizes(), " and b ", b.sizes(), " do not fit w ", w.sizes());
  TORCH_CHECK(p >= 0 && p < 1, "lora_linear: p must be in [0, 1), got ", p);
  TORCH_CHECK(p == 0 || row_keys, "lora_linear: dropout needs row_keys");
}

// h · factor modulo 2³², for words in int64: in halves, so that nothing overflows.
at::Tensor times(const at::Tensor& h, int64_t factor) {
  const at::Tensor high = h.mul(factor >> 16).bitwise_and(0xffff).mul(0x10000);
  return h.mul(factor & 0xffff).add(high).bitwise_and(kWord);
}

at::Tensor fold(const at::Tensor& h, int64_t bits) {
  return h.bitwise_xor(h.bitwise_right_shift(at::Scalar(bits)));
}

// The finaliser of MurmurHash3, 32 bits, as the CPU's kernels have it.
at::Tensor mix(const at::Tensor& h) {
  return fold(times(fold(times(fold(h, 16), 0x85ebca6b), 13), 0xc2b2ae35), 16);
}

at::Tensor hash_dropout_cuda(const at::Tensor& x, const at::Tensor& row_keys, int64_t layer, double p) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kFloat, "hash_dropout: x must be a float32 matrix, got ",
              x.scalar_type(), " ", x.sizes());
  TORCH_CHECK(row_keys.scalar_type() == at::kLong && row_keys.numel() == x.size(0),
              "hash_dropout: row_keys must be ", x.size(0), " int64 values, got ", row_keys.scalar_type(),
              " ", row_keys.sizes());
  TORCH_CHECK(p >= 0 && p < 1, "hash_dropout: p must be in [0, 1), got ", p);
  const at::Tensor keys = row_keys.reshape({-1, 1}), low = keys.bitwise_and(kWord).bitwise_xor(0x9e3779b9),
                   high = keys.bitwise_right_shift(at::Scalar(32)).bitwise_and(kWord);
  const at::Tensor of_layer = mix(at::arange(1, keys.options()).add((layer + 0x7f4a7c15) & kWord));
  const at::Tensor row = mix(mix(low).add(high).bitwise_and(kWord)).add(of_layer);
  const at::Tensor column = times(at::arange(x.size(1), keys.options()), 0x9e3779b9);
  const at::Tensor hash = mix(row.add(column).bitwise_and(kWord));
  const auto threshold = static_cast<int64_t>(p * 4294967296.0);
  return at::where(hash.lt(threshold), 0.0, x.mul(1.0 / (1.0 - p)));
}

at::Tensor linear_cuda(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  check_linear(x, w, bias);
  return at::linear(x, w.to(at::kFloat), bias);
}

at::Tensor input_grad_cuda(const at::Tensor& grad, const at::Tensor& w) {
  return at::mm(grad, w.to(at::kFloat));
}

at::Tensor weight_grad_cuda(const at::Tensor& grad, const at::Tensor& x) { return at::mm(grad.t(), x); }

std::tuple<at::Tensor, at::Tensor> lora_linear_cuda(const at::Tensor& x, const at::Tensor& w,
                                                    const OptionalTensor& bias, const at::Tensor& a,
                                                    const at::Tensor& b, double scale, double p,
                                                    const OptionalTensor& row_keys, int64_t layer) {
  check_adapter(w, a, b, p, row_keys);
  const at::Tensor low = at::mm(p > 0 ? hash_dropout_cuda(x, *row_keys, layer, p) : x, a.t());
  return {linear_cuda(x, w, bias).addmm_(low, b.t(), 1, scale), low};
}

// With u = drop(x) aᵀ: dB = scale · dyᵀu; du = scale · dy B; dA = duᵀ drop(x); dx = dy W + drop'(du A).
std::tuple<at::Tensor, at::Tensor, at::Tensor> lora_grads_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                               const at::Tensor& w, const at::Tensor& a,
                                                               const at::Tensor& b, const at::Tensor& low,
                                                               double scale, double p,
                                                               const OptionalTensor& row_keys, int64_t layer,
                                                               bool needs_x) {
  check_adapter(w, a, b, p, row_keys);
  const auto drop = [&](const at::Tensor& t) {
    return p > 0 ? hash_dropout_cuda(t, *row_keys, layer, p) : t;
  };
  const at::Tensor scaled = grad.mul(scale), grad_low = at::mm(scaled, b);
  at::Tensor grad_x;
  if (needs_x) grad_x = input_grad_cuda(grad, w).add_(drop(at::mm(grad_low, a)));
  return {grad_x, at::mm(grad_low.t(), drop(x)), at::mm(scaled.t(), low)};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CUDA, m) {
  m.impl("linear", &rlt::linear_cuda);
  m.impl("lora_linear", &rlt::lora_linear_cuda);
  m.impl("linear_input_grad", &rlt::input_grad_cuda);
  m.impl("linear_weight_grad", &rlt::weight_grad_cuda);
  m.impl("lora_grads", &rlt::lora_grads_cuda);
  m.impl("hash_dropout", &rlt::hash_dropout_cuda);
}
