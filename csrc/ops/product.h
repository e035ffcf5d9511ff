// Products with a weight: in the weight's type with sums of float32, which is what tensor cores compute.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

namespace rlt {

// x wᵀ [N, out] float32. x [N, in] is rounded to the type of w [out, in], which is float32, bfloat16 or
// float16. Tensors of the CPU, where libtorch has no such product, are widened instead.
inline at::Tensor product(const at::Tensor& x, const at::Tensor& w) {
  if (w.scalar_type() == at::kFloat || !w.is_cuda()) return at::mm(x.to(at::kFloat), w.to(at::kFloat).t());
  return at::mm(x.to(w.scalar_type()), w.t(), at::kFloat);
}

// y += alpha · x wᵀ, y [N, out] float32.
inline void product_into(at::Tensor& y, const at::Tensor& x, const at::Tensor& w, double alpha) {
  if (w.scalar_type() == at::kFloat || !w.is_cuda()) {
    y.addmm_(x.to(at::kFloat), w.to(at::kFloat).t(), 1, alpha);
  } else if (y.size(0) == 1 || y.size(1) == 1) {
    // addmm would take y for a bias, whose type the kernel for that does not know.
    at::Tensor sum = y.unsqueeze(0);
    at::baddbmm_out(sum, sum, x.to(w.scalar_type()).unsqueeze(0), w.t().unsqueeze(0), at::kFloat, 1, alpha);
  } else {
    at::addmm_out(y, y, x.to(w.scalar_type()), w.t(), at::kFloat, 1, alpha);
  }
}

// The type in which gradients pass back through w. float16 would lose small ones.
inline at::ScalarType back_type(const at::Tensor& w) {
  return w.is_cuda() && w.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

// grad w [N, in] float32, of grad [N, out].
inline at::Tensor product_back(const at::Tensor& grad, const at::Tensor& w) {
  const at::ScalarType type = back_type(w);
  return type == at::kFloat ? at::mm(grad.to(type), w.to(type)) : at::mm(grad.to(type), w, at::kFloat);
}

// alpha · x wᵀ.
inline at::Tensor product_scaled(const at::Tensor& x, const at::Tensor& w, double alpha) {
  const bool line = x.size(0) == 1 || w.size(0) == 1;  // which addmm takes for a bias
  if (w.scalar_type() == at::kFloat || !w.is_cuda() || line) return product(x, w).mul_(alpha);
  at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options().dtype(at::kFloat));
  at::addmm_out(y, y, x.to(w.scalar_type()), w.t(), at::kFloat, 0, alpha);
  return y;
}

}  // namespace rlt
