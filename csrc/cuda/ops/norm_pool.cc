// Residual + layer norm, and the mean over each sequence, of libtorch's operators. No sum is by atomic
// addition, whose order would change from run to run.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/packed.h"

namespace rlt {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_cuda(const at::Tensor& x,
                                                                               const at::Tensor& residual,
                                                                               const at::Tensor& weight,
                                                                               const at::Tensor& bias,
                                                                               double eps) {
  TORCH_CHECK(x.dim() == 2 && residual.sizes() == x.sizes() && weight.numel() == x.size(1) &&
                  bias.numel() == x.size(1),
              "add_layer_norm: x ", x.sizes(), ", residual ", residual.sizes(), ", weight ", weight.sizes(),
              " and bias ", bias.sizes(), " do not fit");
  const at::Tensor sum = x.add(residual), mean = sum.mean(1), apart = sum.sub(mean.unsqueeze(1));
  const at::Tensor rstd = apart.square().mean(1).add_(eps).rsqrt_();
  return {apart.mul(rstd.unsqueeze(1)).mul_(weight).add_(bias), sum, mean, rstd};
}

at::Tensor add_layer_norm_backward_cuda(const at::Tensor& grad, const at::Tensor& sum,
                                        const at::Tensor& weight, const at::Tensor& mean,
                                        const at::Tensor& rstd) {
  const at::Tensor scale = rstd.unsqueeze(1), normed = sum.sub(mean.unsqueeze(1)).mul_(scale),
                   g = grad.mul(weight);
  return g.sub(g.mean(1, true)).sub_(normed.mul(g.mul(normed).mean(1, true))).mul_(scale);
}

at::Tensor segment_mean_cuda(const at::Tensor& x, const at::Tensor& cu_seqlens) {
  TORCH_CHECK(x.dim() == 2, "segment_mean: want a matrix, got ", x.sizes());
  const int32_t* cu = checked_cu_seqlens(cu_seqlens, x.size(0));
  const int64_t sequences = cu_seqlens.numel() - 1;
  at::Tensor out = at::zeros({sequences, x.size(1)}, x.options());
  for (int64_t s = 0; s < sequences; ++s) {
    if (cu[s + 1] > cu[s]) out.select(0, s).copy_(x.narrow(0, cu[s], cu[s + 1] - cu[s]).mean(0));
  }
  return out;
}

at::Tensor segment_mean_backward_cuda(const at::Tensor& grad, const at::Tensor& cu_seqlens) {
  const int64_t sequences = cu_seqlens.numel() - 1;
  TORCH_CHECK(sequences == grad.size(0), "segment_mean_backward: grad ", grad.sizes(), " for ", sequences,
              " sequences");
  const int64_t rows = cu_seqlens.select(0, sequences).item<int64_t>();
  const int32_t* cu = checked_cu_seqlens(cu_seqlens, rows);
  at::Tensor owners = at::empty({rows}, at::kLong), shares = at::empty({sequences, 1}, at::kFloat);
  for (int64_t s = 0; s < sequences; ++s) {
    std::fill(owners.mutable_data_ptr<int64_t>() + cu[s], owners.mutable_data_ptr<int64_t>() + cu[s + 1], s);
    shares.mutable_data_ptr<float>()[s] = 1.0f / static_cast<float>(std::max(1, cu[s + 1] - cu[s]));
  }
  return grad.mul(shares.to(grad.device())).index_select(0, owners.to(grad.device()));
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CUDA, m) {
  m.impl("add_layer_norm", &rlt::add_layer_norm_cuda);
  m.impl("add_layer_norm_backward", &rlt::add_layer_norm_backward_cuda);
  m.impl("segment_mean", &rlt::segment_mean_cuda);
  m.impl("segment_mean_backward", &rlt::segment_mean_backward_cuda);
}
