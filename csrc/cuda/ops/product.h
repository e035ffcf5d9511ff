// Products with a weight: in the weight's type with sums of float32, which is what tensor cores compute.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace rlt {

// x wᵀ [N, out] float32. x [N, in] is rounded to the type of w [out, in], which is float32, bfloat16 or float16;
// either may be a transposed view, so grad w is product(grad, w.t()). Tensors of the CPU, where libtorch has no
// such product, are widened instead.
inline at::Tensor product(const at::Tensor& x, const at::Tensor& w) {
  if (w.scalar_type() == at::kFloat || !w.is_cuda()) return at::mm(x.to(at::kFloat), w.to(at::kFloat).t());
  return at::mm(x.to(w.scalar_type()), w.t(), at::kFloat);
}

// y += alpha · x wᵀ, y [N, out] float32.
inline void product_into(at::Tensor& y, const at::Tensor& x, const at::Tensor& w, double alpha) {
  if (w.scalar_type() == at::kFloat || !w.is_cuda()) {
    y.addmm_(x.to(at::kFloat), w.to(at::kFloat).t(), 1, alpha);
  } else {
    at::addmm_out(y, y, x.to(w.scalar_type()), w.t(), at::kFloat, 1, alpha);
  }
}

}  // namespace rlt
