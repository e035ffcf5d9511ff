// Linear layers go through oneDNN, by the operator that libtorch itself registers for it: on
// processors where MKL takes its AVX2 path this is more than twice as fast as aten::linear in fp32, and
// equally fast elsewhere. Weights stay as the file has them: packing gains 2-5 % at training sizes and
// would cost a copy of the model. Those of two bytes an element become floats a few rows at a time, in
// memory that is freed at once, unless the processor multiplies bfloat16 itself.
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>

#include "kernels/kernels.h"
#include "kernels/parallel.h"
#include "ops/cpu/bf16.h"
#include "ops/cpu/layers.h"
#include "ops/linear.h"
#include "ops/widen.h"

namespace rlt {
namespace {

// x wᵀ + bias for dense x [N, in] and w [out, in], which may be a transposed view.
at::Tensor dense_linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  using Scalars = c10::List<std::optional<at::Scalar>>;
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                               c10::string_view, Scalars, std::optional<c10::string_view>);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Signature>();
  static const Scalars none;
  return op.call(x, w, bias, "none", none, std::optional<c10::string_view>(""));
}

constexpr int64_t kWidened = int64_t{1} << 21;  // elements at once, at most

void check_linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  TORCH_CHECK(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1) &&
                  (!bias || (bias->dim() == 1 && bias->size(0) == w.size(0))),
              "linear: x ", x.sizes(), ", w ", w.sizes(), " and the bias do not fit");
  TORCH_CHECK(x.scalar_type() == at::kFloat && (!bias || bias->scalar_type() == at::kFloat),
              "linear: x and the bias must be float32, got x ", x.scalar_type());
  check_weight("linear", w);
}

// Calls body(first, rows of w from there on as floats) until w is through.
template <typename Body>
void for_widened_rows(const at::Tensor& w, const Body& body) {
  const int64_t rows = w.size(0), width = w.size(1);
  const int64_t most =
      std::clamp<int64_t>(kWidened / std::max<int64_t>(1, width), 1, std::max<int64_t>(1, rows));
  at::Tensor scratch = at::empty({most, width}, at::kFloat);
  float* const out = scratch.mutable_data_ptr<float>();
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    parallel_for(0, count, grain(width), [&](int64_t begin, int64_t end) {
      float_rows(w, first + begin, end - begin, out + begin * width);
    });
    body(first, scratch.narrow(0, 0, count));
  }
}

at::Tensor any_linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  if (w.scalar_type() == at::kFloat) return dense_linear(x, w, bias);
  if (multiplies_bf16(w)) return bf16_product('T', rounded_rows(x), w, bias, {}, {});
  at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  for_widened_rows(w, [&](int64_t first, const at::Tensor& rows) {
    const int64_t count = rows.size(0);
    const OptionalTensor part = bias ? OptionalTensor(bias->narrow(0, first, count)) : std::nullopt;
    const at::Tensor columns = dense_linear(x, rows, part);
    if (count == w.size(0)) {
      y = columns;
    } else {
      y.narrow(1, first, count).copy_(columns);
    }
  });
  return y;
}

void check_grad(const at::Tensor& grad, const at::Tensor& other, int64_t rows, int64_t columns) {
  TORCH_CHECK(grad.dim() == 2 && other.dim() == 2 && grad.size(0) == rows && grad.size(1) == columns &&
                  grad.scalar_type() == at::kFloat && grad.is_contiguous(),
              "linear: a gradient ", grad.scalar_type(), " ", grad.sizes(), " does not fit ", other.sizes(),
              ", or is not dense");
}

}  // namespace

at::Tensor input_grad_cpu(const at::Tensor& grad, const at::Tensor& w) {
  check_weight("linear", w);
  check_grad(grad, w, grad.size(0), w.size(0));
  if (w.scalar_type() == at::kFloat) return dense_linear(grad, w.t(), std::nullopt);
  if (multiplies_bf16(w)) return bf16_product('N', rounded_rows(grad), w, {}, {}, {});
  at::Tensor sum;
  for_widened_rows(w, [&](int64_t first, const at::Tensor& rows) {
    const at::Tensor part =
        dense_linear(grad.narrow(1, first, rows.size(0)).contiguous(), rows.t(), std::nullopt);
    sum = sum.defined() ? sum.add_(part) : part;
  });
  return sum.defined() ? sum : at::zeros({grad.size(0), w.size(1)}, grad.options());
}

at::Tensor linear_cpu(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  check_linear(x, w, bias);
  return any_linear(x.contiguous(), w, bias);
}

namespace {

// gradᵀ x. oneDNN copies both into a layout of its own, which it wins back only where it is ahead of MKL.
at::Tensor weight_grad_cpu(const at::Tensor& grad, const at::Tensor& x) {
  check_grad(grad, x, x.size(0), grad.size(1));
  static const bool wide = at::get_cpu_capability().rfind("AVX512", 0) == 0;
  return wide ? dense_linear(grad.t(), x.t(), std::nullopt) : at::mm(grad.t(), x);
}

at::Tensor hash_dropout_cpu(const at::Tensor& x, const at::Tensor& row_keys, int64_t layer, double p) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kFloat && x.is_contiguous(),
              "hash_dropout: x must be a dense float32 matrix, got ", x.scalar_type(), " ", x.sizes());
  TORCH_CHECK(
      row_keys.scalar_type() == at::kLong && row_keys.numel() == x.size(0) && row_keys.is_contiguous(),
      "hash_dropout: row_keys must be ", x.size(0), " dense int64 values, got ", row_keys.scalar_type(), " ",
      row_keys.sizes());
  TORCH_CHECK(p >= 0 && p < 1, "hash_dropout: p must be in [0, 1), got ", p);
  at::Tensor y = at::empty_like(x);
  const int64_t features = x.size(1);
  const float* in = x.const_data_ptr<float>();
  const int64_t* keys = row_keys.const_data_ptr<int64_t>();
  float* out = y.mutable_data_ptr<float>();
  parallel_for(0, x.size(0), grain(features), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels().dropout(in + i * features, out + i * features, features, keys[i], layer, p);
    }
  });
  return y;
}

void check_adapter(const at::Tensor& w, const at::Tensor& a, const at::Tensor& b, double p,
                   const OptionalTensor& row_keys) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == w.size(1) && b.size(0) == w.size(0) &&
                  a.size(0) == b.size(1),
              "lora_linear: a ", a.sizes(), " and b ", b.sizes(), " do not fit w ", w.sizes());
  TORCH_CHECK(p >= 0 && p < 1, "lora_linear: p must be in [0, 1), got ", p);
  TORCH_CHECK(p == 0 || row_keys, "lora_linear: dropout needs row_keys");
}

std::tuple<at::Tensor, at::Tensor> lora_linear_cpu(const at::Tensor& x_any, const at::Tensor& w,
                                                   const OptionalTensor& bias, const at::Tensor& a,
                                                   const at::Tensor& b, double scale, double p,
                                                   const OptionalTensor& row_keys, int64_t layer) {
  check_linear(x_any, w, bias);
  check_adapter(w, a, b, p, row_keys);
  const at::Tensor x = x_any.contiguous();
  auto out = forward_layers(x, p > 0 ? hash_dropout(x, *row_keys, layer, p) : x, {{w, bias, a, b, scale}});
  return {out.y[0], out.low};
}

// With u = drop(x) aᵀ: dB = scale · dyᵀu; du = scale · dy B; dA = duᵀ drop(x); dx = dy W + drop'(du A).
std::tuple<at::Tensor, at::Tensor, at::Tensor> lora_grads_cpu(const at::Tensor& grad, const at::Tensor& x,
                                                              const at::Tensor& w, const at::Tensor& a,
                                                              const at::Tensor& b, const at::Tensor& low,
                                                              double scale, double p,
                                                              const OptionalTensor& row_keys, int64_t layer,
                                                              bool needs_x) {
  check_grad(grad, w, x.size(0), w.size(0));
  check_adapter(w, a, b, p, row_keys);
  TORCH_CHECK(x.dim() == 2 && x.size(1) == w.size(1) && x.is_contiguous() && low.dim() == 2 &&
                  low.size(0) == x.size(0) && low.size(1) == a.size(0) && low.stride(1) == 1,
              "lora_grads: x ", x.sizes(), " and low ", low.sizes(), " do not fit w ", w.sizes(),
              ", or are not dense");
  const auto drop = [&](const at::Tensor& t) { return p > 0 ? hash_dropout(t, *row_keys, layer, p) : t; };
  auto found = backward_layers({grad}, drop(x), {{w, {}, a, b, scale}}, low, needs_x, p > 0);
  if (p > 0 && needs_x) found.x.add_(drop(found.adapted));
  return {found.x, found.a[0], found.b[0]};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CPU, m) {
  m.impl("linear", &rlt::linear_cpu);
  m.impl("lora_linear", &rlt::lora_linear_cpu);
  m.impl("linear_input_grad", &rlt::input_grad_cpu);
  m.impl("linear_weight_grad", &rlt::weight_grad_cpu);
  m.impl("lora_grads", &rlt::lora_grads_cpu);
  m.impl("hash_dropout", &rlt::hash_dropout_cpu);
}
