// Residual + layer norm in one pass, and the mean over each sequence.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "kernels/kernels.h"
#include "kernels/parallel.h"
#include "ops/packed.h"

namespace rlt {
namespace {

void check_matrix(const at::Tensor& t, const char* what) {
  TORCH_CHECK(t.dim() == 2 && t.scalar_type() == at::kFloat && t.is_contiguous(), what,
              ": want a dense float32 matrix, got ", t.scalar_type(), " ", t.sizes());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_cpu(const at::Tensor& x,
                                                                              const at::Tensor& residual,
                                                                              const at::Tensor& weight,
                                                                              const at::Tensor& bias,
                                                                              double eps) {
  check_matrix(x, "add_layer_norm");
  check_matrix(residual, "add_layer_norm");
  const int64_t rows = x.size(0), width = x.size(1);
  TORCH_CHECK(residual.sizes() == x.sizes() && weight.numel() == width && bias.numel() == width,
              "add_layer_norm: x ", x.sizes(), ", residual ", residual.sizes(), ", weight ", weight.sizes(),
              " and bias ", bias.sizes(), " do not fit");
  TORCH_CHECK(weight.is_contiguous() && bias.is_contiguous(),
              "add_layer_norm: weight and bias must be dense");
  at::Tensor y = at::empty_like(x), sum = at::empty_like(x);
  at::Tensor mean = at::empty({rows}, x.options()), rstd = at::empty({rows}, x.options());
  const float *xp = x.const_data_ptr<float>(), *rp = residual.const_data_ptr<float>(),
              *wp = weight.const_data_ptr<float>(), *bp = bias.const_data_ptr<float>();
  float *yp = y.mutable_data_ptr<float>(), *sp = sum.mutable_data_ptr<float>(),
        *mp = mean.mutable_data_ptr<float>(), *dp = rstd.mutable_data_ptr<float>();
  const Kernels& k = kernels();
  parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* s = sp + i * width;
      std::copy_n(xp + i * width, width, s);
      k.add_scaled(1, rp + i * width, s, width);
      dp[i] = k.layer_norm(s, wp, bp, yp + i * width, width, static_cast<float>(eps), mp + i);
    }
  });
  return {y, sum, mean, rstd};
}

at::Tensor add_layer_norm_backward_cpu(const at::Tensor& grad, const at::Tensor& sum,
                                       const at::Tensor& weight, const at::Tensor& mean,
                                       const at::Tensor& rstd) {
  check_matrix(grad, "add_layer_norm_backward");
  check_matrix(sum, "add_layer_norm_backward");
  const int64_t rows = grad.size(0), width = grad.size(1);
  TORCH_CHECK(
      sum.sizes() == grad.sizes() && weight.numel() == width && mean.numel() == rows && rstd.numel() == rows,
      "add_layer_norm_backward: grad ", grad.sizes(), ", sum ", sum.sizes(), ", weight ", weight.sizes(),
      ", mean ", mean.sizes(), " and rstd ", rstd.sizes(), " do not fit");
  TORCH_CHECK(weight.is_contiguous() && mean.is_contiguous() && rstd.is_contiguous(),
              "add_layer_norm_backward: weight, mean and rstd must be dense");
  at::Tensor out = at::empty_like(grad);
  const float *gp = grad.const_data_ptr<float>(), *sp = sum.const_data_ptr<float>(),
              *wp = weight.const_data_ptr<float>(), *mp = mean.const_data_ptr<float>(),
              *dp = rstd.const_data_ptr<float>();
  float* op = out.mutable_data_ptr<float>();
  const Kernels& k = kernels();
  parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      k.layer_norm_backward(gp + i * width, sp + i * width, wp, mp[i], dp[i], op + i * width, width);
    }
  });
  return out;
}

at::Tensor segment_mean_cpu(const at::Tensor& x, const at::Tensor& cu_seqlens) {
  check_matrix(x, "segment_mean");
  const int32_t* cu = checked_cu_seqlens(cu_seqlens, x.size(0));
  const int64_t sequences = cu_seqlens.numel() - 1, width = x.size(1);
  at::Tensor out = at::zeros({sequences, width}, x.options());
  const float* xp = x.const_data_ptr<float>();
  float* op = out.mutable_data_ptr<float>();
  const Kernels& k = kernels();
  parallel_for(0, sequences, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      float* row = op + s * width;
      for (int64_t i = cu[s]; i < cu[s + 1]; ++i) k.add_scaled(1, xp + i * width, row, width);
      if (cu[s + 1] > cu[s]) k.scale(row, 1.0f / static_cast<float>(cu[s + 1] - cu[s]), row, width);
    }
  });
  return out;
}

at::Tensor segment_mean_backward_cpu(const at::Tensor& grad, const at::Tensor& cu_seqlens) {
  check_matrix(grad, "segment_mean_backward");
  const int64_t sequences = cu_seqlens.numel() - 1, width = grad.size(1);
  TORCH_CHECK(sequences == grad.size(0), "segment_mean_backward: grad ", grad.sizes(), " for ", sequences,
              " sequences");
  const int64_t rows = cu_seqlens.select(0, sequences).item<int64_t>();
  const int32_t* cu = checked_cu_seqlens(cu_seqlens, rows);
  at::Tensor out = at::empty({rows, width}, grad.options());
  const float* gp = grad.const_data_ptr<float>();
  float* op = out.mutable_data_ptr<float>();
  const Kernels& k = kernels();
  parallel_for(0, sequences, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const float share = 1.0f / static_cast<float>(std::max(1, cu[s + 1] - cu[s]));
      for (int64_t i = cu[s]; i < cu[s + 1]; ++i) k.scale(gp + s * width, share, op + i * width, width);
    }
  });
  return out;
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CPU, m) {
  m.impl("add_layer_norm", &rlt::add_layer_norm_cpu);
  m.impl("add_layer_norm_backward", &rlt::add_layer_norm_backward_cpu);
  m.impl("segment_mean", &rlt::segment_mean_cpu);
  m.impl("segment_mean_backward", &rlt::segment_mean_backward_cpu);
}
