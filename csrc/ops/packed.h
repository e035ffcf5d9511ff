// Operators on packed batches, through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace rlt {

// The sequence borders as int32 values on the host; checks that they start at 0, never fall and end
// at rows.
const int32_t* checked_cu_seqlens(const at::Tensor& cu_seqlens, int64_t rows);
// Which sequence each of n continues, -1 for none, as int32 values on the host; checks that sequences come
// right behind the one that they continue, which continues none itself. NULL where it is undefined.
const int32_t* checked_continues(const std::optional<at::Tensor>& continues, int64_t n);

std::tuple<at::Tensor, at::Tensor> varlen_attention(const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v, const at::Tensor& cu_seqlens,
                                                    int64_t heads, double scale, bool causal = false,
                                                    int64_t window = 0, double softcap = 0,
                                                    const std::optional<at::Tensor>& continues = {},
                                                    std::optional<at::ScalarType> compute = {});
std::tuple<at::Tensor, at::Tensor, at::Tensor> varlen_attention_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t heads, double scale,
    bool causal, int64_t window, double softcap, const std::optional<at::Tensor>& continues,
    std::optional<at::ScalarType> compute);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x,
                                                                          const at::Tensor& residual,
                                                                          const at::Tensor& weight,
                                                                          const at::Tensor& bias, double eps);
at::Tensor add_layer_norm_backward(const at::Tensor& grad, const at::Tensor& sum, const at::Tensor& weight,
                                   const at::Tensor& mean, const at::Tensor& rstd);
at::Tensor select_rows(const at::Tensor& x, const at::Tensor& index);
at::Tensor segment_mean(const at::Tensor& x, const at::Tensor& cu_seqlens);
at::Tensor segment_mean_backward(const at::Tensor& grad, const at::Tensor& cu_seqlens);

}  // namespace rlt
