// Several streams of hidden states [N, S, H], the first of which blocks work on (AltUp, Baykal 2023).
#pragma once

#include "nn/transformer.h"

namespace rlt::nn {

// Streams of the embeddings x [N, H], and the hidden states that streams end in.
at::Tensor spread(const Streams& maps, const at::Tensor& x);
at::Tensor merge(const Streams& maps, const at::Tensor& streams);

// The streams as a block expects to leave them, and these by what it makes of the first, y [N, H].
at::Tensor predict(const Config& config, const Block& block, const at::Tensor& streams);
at::Tensor correct(const Config& config, const Block& block, const at::Tensor& predicted,
                   const at::Tensor& y);

// What a block's input reads of corrected streams, [N, H].
at::Tensor first_scaled(const Block& block, const at::Tensor& streams);

}  // namespace rlt::nn
