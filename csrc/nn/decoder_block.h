// One block of the pre-norm transformer.
#pragma once

#include <memory>

#include "nn/decoder.h"

namespace rlt::nn {

// Cosines and sines of every row's angles, [N, rotary_dim / 2], times the rope's factor.
struct Rotation {
  at::Tensor cos, sin;
};

// What a block needs to know of the batch and of its own place.
struct BlockPass {
  std::shared_ptr<const DecoderConfig> config;
  at::Tensor cu_seqlens, continues;  // continues undefined where no sequence continues another
  Rotation rotation;                 // undefined with learned positions
  AdapterPass adapter;
  int64_t window = 0;
};

// norm of the kind that the configuration asks for; x [N, H].
at::Tensor apply_norm(const DecoderConfig& config, const DecoderNorm& norm, const at::Tensor& x);

// x plus what attention and MLP make of it. x, result [N, H].
at::Tensor block_forward(const DecoderBlock& block, const BlockPass& pass, const at::Tensor& x);

// The same, keeping only x for backward (Chen 2016): backward computes the block again and differentiates
// that. The adapters' dropout is a hash, so it drops the same features again.
at::Tensor checkpointed_block(const DecoderBlock& block, const BlockPass& pass, const at::Tensor& x);

}  // namespace rlt::nn
