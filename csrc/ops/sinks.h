// Attention to sinks, of language models.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace rlt {

// Causal varlen_attention, in which the queries of head h also give exp(sinks[h]) to no value; sinks [heads].
at::Tensor sink_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& cu_seqlens, int64_t heads, double scale, int64_t window,
                          const at::Tensor& continues, at::ScalarType compute, const at::Tensor& sinks);

}  // namespace rlt
