// Attention that knows how far keys are from their query.
#pragma once

#include "nn/block.h"

namespace rlt::nn {

// What attention of q, k, v [N, heads·d] mixes for each row, [N, heads·d]. pass.distances is defined.
at::Tensor distance_attention(const Block& block, const BlockPass& pass, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v);

}  // namespace rlt::nn
