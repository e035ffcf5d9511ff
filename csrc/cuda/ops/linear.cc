// Linear layers and their adapters, composed of libtorch's products. On a GPU products read the weight's
// type, with float32 sums and results. On the CPU the weight is widened, so that results equal those of the
// CPU kernels.
#include "ops/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "cuda/ops/launch.h"
#include "cuda/ops/range.h"
#include "ops/product.h"

namespace rlt {
namespace {

void check_linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  TORCH_CHECK(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1) &&
                  (!bias || (bias->dim() == 1 && bias->size(0) == w.size(0))),
              "linear: x ", x.sizes(), ", w ", w.sizes(), " and the bias do not fit");
  TORCH_CHECK((x.scalar_type() == at::kFloat || (x.is_cuda() && x.scalar_type() == w.scalar_type())) &&
                  (!bias || bias->scalar_type() == at::kFloat),
              "linear: x must be float32, or on a GPU of the weight's type, and the bias float32, got x ",
              x.scalar_type());
}

void check_adapter(const at::Tensor& w, const at::Tensor& a, const at::Tensor& b, double p,
                   const OptionalTensor& row_keys) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == w.size(1) && b.size(0) == w.size(0) &&
                  a.size(0) == b.size(1),
              "lora_linear: a ", a.sizes(), " and b ", b.sizes(), " do not fit w ", w.sizes());
  TORCH_CHECK(p >= 0 && p < 1, "lora_linear: p must be in [0, 1), got ", p);
  TORCH_CHECK(p == 0 || row_keys, "lora_linear: dropout needs row_keys");
}

at::Tensor hash_dropout_cuda(const at::Tensor& x, const at::Tensor& row_keys, int64_t layer, double p) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kFloat, "hash_dropout: x must be a float32 matrix, got ",
              x.scalar_type(), " ", x.sizes());
  TORCH_CHECK(
      row_keys.scalar_type() == at::kLong && row_keys.numel() == x.size(0) && row_keys.device() == x.device(),
      "hash_dropout: row_keys must be ", x.size(0), " int64 values on ", x.device(), ", got ",
      row_keys.scalar_type(), " ", row_keys.sizes(), " on ", row_keys.device());
  TORCH_CHECK(p >= 0 && p < 1, "hash_dropout: p must be in [0, 1), got ", p);
  const at::Tensor in = x.contiguous(), keys = row_keys.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  cuda::hash_dropout(Launch(x).stream, floats(in), keys.const_data_ptr<int64_t>(), layer, p, out(y),
                     x.size(0), x.size(1));
  return y;
}

// Converts t to the weight's type, in which the GPU computes the adapters' products.
at::Tensor as_weight(const at::Tensor& t, const at::Tensor& w) {
  return w.is_cuda() ? t.to(w.scalar_type()) : t;
}

// x wᵀ + bias; x may already be in the weight's type.
at::Tensor layer_of(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  if (w.scalar_type() == at::kFloat || !w.is_cuda()) return at::linear(x, w.to(at::kFloat), bias);
  at::Tensor y = product(x, w);
  return bias ? y.add_(*bias) : y;
}

// grad wᵀ.
at::Tensor product_of_grad(const at::Tensor& grad, const at::Tensor& w) {
  if (w.scalar_type() != at::kHalf || !w.is_cuda()) return product(grad, w);
  const at::Tensor greatest = greatest_of(grad);
  return product(grad.div(greatest), w).mul_(greatest);
}

at::Tensor linear_cuda(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  check_linear(x, w, bias);
  return layer_of(x, w, bias);
}

at::Tensor input_grad_cuda(const at::Tensor& grad, const at::Tensor& w) {
  return product_of_grad(grad, w.t());
}

at::Tensor weight_grad_cuda(const at::Tensor& grad, const at::Tensor& x) { return at::mm(grad.t(), x); }

std::tuple<at::Tensor, at::Tensor> lora_linear_cuda(const at::Tensor& x, const at::Tensor& w,
                                                    const OptionalTensor& bias, const at::Tensor& a,
                                                    const at::Tensor& b, double scale, double p,
                                                    const OptionalTensor& row_keys, int64_t layer) {
  check_linear(x, w, bias);
  check_adapter(w, a, b, p, row_keys);
  const at::Tensor in = as_weight(x, w), dropped = p > 0 ? hash_dropout_cuda(x, *row_keys, layer, p) : in;
  const at::Tensor low = product(dropped, as_weight(a, w));
  at::Tensor y = layer_of(in, w, bias);
  product_into(y, low, as_weight(b, w), scale);
  return {y, low};
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
    return p > 0 ? hash_dropout_cuda(t.to(at::kFloat), *row_keys, layer, p) : t;
  };
  // Rounded once for three products; float16 products each scale and round it themselves.
  const at::Tensor g = w.scalar_type() == at::kHalf ? grad : as_weight(grad, w);
  const at::Tensor grad_low = product_of_grad(g, as_weight(b, w).t()).mul_(scale);
  at::Tensor grad_x;
  if (needs_x) grad_x = product_of_grad(g, w.t()).add_(drop(product_of_grad(grad_low, as_weight(a, w).t())));
  return {grad_x, product_of_grad(grad_low.t(), as_weight(drop(x), w).t()),
          product_of_grad(g.t(), as_weight(low, w).t()).mul_(scale)};
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
