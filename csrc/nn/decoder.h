// The pre-norm transformer, causal or bidirectional, on packed batches.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "nn/weights.h"
#include "rltrain.h"

namespace rlt::nn {

// Scale of an RMS norm, or scale and, where it has one, shift of a layer norm, [H] or [head_dim].
struct DecoderNorm {
  at::Tensor weight, bias;
};

// A block. Layers and norms that the configuration does without are undefined.
struct DecoderBlock {
  DecoderNorm attn_norm, q_norm, k_norm, post_attn_norm, mlp_norm, post_mlp_norm;
  Linear q, k, v, qkv, o;
  Linear gate, up, gate_up, down;
};

struct Rope {
  std::vector<double> inv_freq, long_inv_freq;
  double factor = 1, long_factor = 1;
  int64_t switch_length = 0;
};

// rlt_decoder_config with its arrays owned.
struct DecoderConfig : rlt_decoder_config {
  // Errors name a choice that is out of range or does not fit another.
  explicit DecoderConfig(const rlt_decoder_config& config);

  std::vector<int64_t> layer_windows;
  std::vector<int32_t> layer_ropes;
  std::vector<Rope> rope_list;
};

class Decoder {
 public:
  // Takes its weights by name from weights; errors name one that is missing, superfluous or misshapen.
  Decoder(const rlt_decoder_config& config, const Weights& weights);

  // Hidden states after the final norm, [N, H] fp32. tokens, positions [N] int64; cu_seqlens [S+1] int32;
  // continues [S] int32, undefined for none, as varlen_attention has it, with positions that go on.
  // With checkpoint, only each block's input is kept for backward, which computes the rest again.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& cu_seqlens,
                     const at::Tensor& continues, const AdapterPass& pass, bool checkpoint = false) const;

  // Puts an adapter on the named linear layer, "layers.0.q".
  void adapt(const std::string& layer, const at::Tensor& a, const at::Tensor& b, double scale);

  const DecoderConfig& config() const { return *config_; }
  const std::vector<DecoderBlock>& blocks() const { return blocks_; }
  const at::Tensor& embed() const { return embed_; }          // [V, H]
  const at::Tensor& positions() const { return positions_; }  // [P, H], undefined with RoPE
  const DecoderNorm& norm() const { return norm_; }
  const Linear& head() const { return head_; }  // weight is embed() where tied

 private:
  std::shared_ptr<const DecoderConfig> config_;  // shared with the graphs of passes whose backward is due
  at::Tensor embed_, positions_;
  DecoderNorm embed_norm_, norm_;
  Linear head_;
  std::vector<DecoderBlock> blocks_;
  std::map<std::string, Linear*> linears_;  // point into blocks_, whose buffer moves never copy
};

}  // namespace rlt::nn
