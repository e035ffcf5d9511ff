// Linear layers side by side on panels of weights: one pass over weights that are packed already, which is
// what few rows wait for.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/group.h"
#include "ops/linear.h"
#include "rltrain.h"

namespace rlt {
namespace {

Element element_of(const at::Tensor& w) {
  switch (w.scalar_type()) {
    case at::kFloat:
      return Element::kF32;
    case at::kBFloat16:
      return Element::kBF16;
    case at::kHalf:
      return Element::kF16;
    default:
      TORCH_CHECK(false, "linear_group: w must be float32, bfloat16 or float16, got ", w.scalar_type());
  }
}

Group group_of(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kFloat && (x.size(1) < 2 || x.stride(1) == 1),
              "linear_group: want a float32 matrix x with dense rows, got ", x.scalar_type(), " ", x.sizes());
  Group g;
  g.element = element_of(w);
  g.in = x.size(1);
  TORCH_CHECK(w.dim() == 3 && w.is_contiguous() && w.size(1) == g.padded_in() && w.size(2) == kPanel,
              "linear_group: w ", w.sizes(), " does not fit x ", x.sizes(), ", or is not dense");
  g.panels = w.size(0);
  g.weights = w.const_data_ptr();
  if (bias) {
    TORCH_CHECK(
        bias->scalar_type() == at::kFloat && bias->numel() == kPanel * g.panels && bias->is_contiguous(),
        "linear_group: bias ", bias->scalar_type(), " ", bias->sizes(), " does not fit w ", w.sizes());
    g.bias = bias->const_data_ptr<float>();
  }
  return g;
}

LowRank adapter_of(const Group& g, const at::Tensor& a, const OptionalTensor& b,
                   const OptionalTensor& shares) {
  TORCH_CHECK(a.dim() == 3 && a.size(1) == g.in && a.size(2) == kPanel && a.scalar_type() == at::kFloat &&
                  a.is_contiguous(),
              "linear_group: a ", a.scalar_type(), " ", a.sizes(), " does not fit ", g.in, " features");
  TORCH_CHECK(b && b->scalar_type() == at::kFloat && b->is_contiguous() && shares &&
                  shares->scalar_type() == at::kLong && shares->is_contiguous() && shares->dim() == 2 &&
                  shares->size(0) == g.panels && shares->size(1) == 3,
              "linear_group: a comes with dense b and with shares [", g.panels, ", 3]");
  static_assert(sizeof(LowRank::Share) == 3 * sizeof(int64_t), "shares are three numbers");
  LowRank low;
  low.width = a.size(0) * kPanel;
  low.a = a.const_data_ptr<float>();
  low.b = b->const_data_ptr<float>();
  low.shares = static_cast<const LowRank::Share*>(shares->const_data_ptr());
  for (int64_t p = 0; p < g.panels; ++p) {
    const auto [column, rank, offset] = low.shares[p];
    TORCH_CHECK(column >= 0 && rank >= 0 && column <= low.width - rank && offset >= 0 &&
                    offset <= b->numel() - rank * kPanel,
                "linear_group: share ", p, " (", column, ", ", rank, ", ", offset, ") is outside of a or b");
  }
  return low;
}

at::Tensor linear_group_cpu(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias,
                            const OptionalTensor& a, const OptionalTensor& b, const OptionalTensor& shares,
                            int64_t activation, bool gated, const OptionalTensor& residual) {
  const Group g = group_of(x, w, bias);
  LowRank low;
  if (a) low = adapter_of(g, *a, b, shares);
  TORCH_CHECK(activation >= kNoActivation && activation <= RLT_ACT_RELU, "linear_group: unknown activation ",
              activation);
  TORCH_CHECK(!gated || (activation != kNoActivation && g.panels % 2 == 0),
              "linear_group: gated needs an activation and pairs of panels, got ", g.panels);
  Finish finish;
  finish.activation = static_cast<int32_t>(activation);
  finish.gated = gated;
  const int64_t rows = x.size(0), width = (gated ? g.panels / 2 : g.panels) * kPanel;
  if (residual) {
    TORCH_CHECK(residual->dim() == 2 && residual->size(0) == rows && residual->size(1) == width &&
                    residual->scalar_type() == at::kFloat && residual->stride(1) == 1,
                "linear_group: residual ", residual->scalar_type(), " ", residual->sizes(), ", want [", rows,
                ", ", width, "]");
    finish.residual = {residual->const_data_ptr<float>(), residual->stride(0)};
  }
  at::Tensor y = at::empty({rows, width}, x.options());
  std::vector<AdaptedRows> adapted;
  if (a) adapted.push_back({0, rows, &low});
  multiply_group(rows, {x.const_data_ptr<float>(), x.stride(0)}, g, adapted, finish,
                 y.mutable_data_ptr<float>(), width);
  return y;
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CPU, m) { m.impl("linear_group", &rlt::linear_group_cpu); }
