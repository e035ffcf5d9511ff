// The transformer encoder, on packed batches.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "nn/weights.h"
#include "rltrain.h"

namespace rlt::nn {

// Scale and shift of a layer norm, [H] each.
struct Norm {
  at::Tensor weight, bias;
};

// Post-norm block: attention, residual and norm, then MLP, residual and norm.
struct Block {
  Linear query, key, value, output;  // [H, H]
  Norm attention_norm;
  Linear up, down;  // [I, H], [H, I]
  Norm mlp_norm;
};

class Encoder {
 public:
  // Takes its weights by name from weights; errors name the one that is missing or misshapen.
  Encoder(const rlt_model_config& config, const Weights& weights);

  // Hidden states of the last block, [N, H]. tokens, positions [N] int64; cu_seqlens [S+1] int32.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& cu_seqlens,
                     const AdapterPass& pass) const;

  // max_positions counts from first_position.
  const rlt_model_config& config() const { return config_; }

  // Puts an adapter on the named linear layer.
  void adapt(const std::string& layer, const at::Tensor& a, const at::Tensor& b, double scale);

 private:
  at::Tensor embed(const at::Tensor& tokens, const at::Tensor& positions) const;

  rlt_model_config config_;
  at::Tensor words_, positions_, types_;  // [V, H], [P, H] from first_position on, [T, H] or undefined
  Norm embedding_norm_;
  std::vector<Block> blocks_;
  std::map<std::string, Linear*> linears_;  // point into blocks_, whose buffer moves never copy
};

}  // namespace rlt::nn
