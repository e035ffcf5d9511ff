// The mean over each sequence of a packed batch.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cuda/ops/launch.h"
#include "ops/packed.h"

namespace rlt {
namespace {

at::Tensor segment_mean_cuda(const at::Tensor& x, const at::Tensor& cu_seqlens) {
  TORCH_CHECK(x.dim() == 2, "segment_mean: want a matrix, got ", x.sizes());
  check_floats("segment_mean", {x});
  checked_cu_seqlens(cu_seqlens, x.size(0));
  const int64_t sequences = cu_seqlens.numel() - 1;
  const at::Tensor rows = dense_rows(x), borders = cu_seqlens.to(x.device(), /*non_blocking=*/true);
  at::Tensor mean = at::empty({sequences, x.size(1)}, x.options());
  cuda::segment_mean(Launch(x).stream, matrix(rows), borders.const_data_ptr<int32_t>(), out(mean), sequences,
                     x.size(1));
  return mean;
}

at::Tensor segment_mean_backward_cuda(const at::Tensor& grad, const at::Tensor& cu_seqlens) {
  const int64_t sequences = cu_seqlens.numel() - 1;
  TORCH_CHECK(grad.dim() == 2 && sequences == grad.size(0), "segment_mean_backward: grad ", grad.sizes(),
              " for ", sequences, " sequences");
  check_floats("segment_mean_backward", {grad});
  const int64_t rows = cu_seqlens.select(0, sequences).item<int64_t>();
  checked_cu_seqlens(cu_seqlens, rows);
  const at::Tensor dense = grad.contiguous(), borders = cu_seqlens.to(grad.device(), /*non_blocking=*/true);
  at::Tensor grad_x = at::empty({rows, grad.size(1)}, grad.options());
  cuda::segment_mean_backward(Launch(grad).stream, floats(dense), borders.const_data_ptr<int32_t>(),
                              out(grad_x), rows, sequences, grad.size(1));
  return grad_x;
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CUDA, m) {
  m.impl("segment_mean", &rlt::segment_mean_cuda);
  m.impl("segment_mean_backward", &rlt::segment_mean_backward_cuda);
}
