// The transformer, causal or bidirectional, on packed batches.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/config.h"
#include "nn/linear.h"
#include "nn/weights.h"

namespace rlt::nn {

// Scale of an RMS norm, or scale and, where it has one, shift of a layer norm, [H] or [head_dim].
struct Norm {
  at::Tensor weight, bias;
};

// Layers that the configuration does without are undefined.
struct Mlp {
  Linear gate, up, gate_up, down;
};

// Adapters of all experts of a block, as rlt_model_adapt has them; undefined without.
struct ExpertLora {
  Adapter up, down;
};

// A block; its own MLP is that of all tokens.
struct Block : Mlp {
  int64_t kv_heads = 0, head_dim = 0;
  size_t keys_of = 0;     // the block whose keys and values attention reads
  bool lends = false;     // later blocks read this one's
  bool up_first = false;  // the rows of gate_up are up's, then gate's
  Norm attn_norm, sum_norm, q_norm, k_norm, post_attn_norm, mlp_norm, post_mlp_norm;
  Norm v_norm;  // of ones, with value_norm
  Linear q, k, v, qkv, o;
  Linear input_gate, input_proj;  // of a model with inputs to each block
  Norm post_input_norm;
  at::Tensor scalar;             // [1], or undefined
  std::optional<double> cutoff;  // of gate's outputs, in standard deviations above a row's mean
  // Of a LAuReL (Menghani 2024), undefined without.
  Linear laurel_left, laurel_right;
  Norm post_laurel_norm;
  // Of a model with streams, undefined elsewhere.
  Linear streams_router, predict, correct;  // [S, H], [S², S], [S, S]
  Norm streams_norm;
  at::Tensor streams_scale;  // [H]
  Linear router, shared_gate;
  at::Tensor router_bias;  // [E], or undefined
  // Of experts beside the MLP, undefined elsewhere: what the router reads, what they read and make, what the
  // MLP makes; [E], factors of the experts.
  Norm router_norm, experts_norm, post_experts_norm, post_shared_norm;
  at::Tensor expert_scale;
  std::vector<Mlp> experts;
  ExpertLora lora;
  at::Tensor sinks;            // [heads], or undefined
  at::Tensor conv, conv_bias;  // [channels, taps], [channels]: a convolution takes the place of attention
  // Of a gated delta rule behind the convolution, undefined elsewhere: [n], [n], [v].
  Linear z, rate, decay;
  at::Tensor a_log, dt_bias, delta_norm;
};

// Sequences without padding. Fields that may be undefined say so.
struct Batch {
  at::Tensor tokens, positions;  // [N] int64
  at::Tensor cu_seqlens;         // [S+1] int32
  at::Tensor continues;          // [S] int32 as varlen_attention has it, undefined for none; positions go on
  at::Tensor rows;               // [M] int64: the last block works for these alone; undefined for all
  at::Tensor noise;              // [N, E]: added to the embeddings of tokens; undefined for none
  at::Tensor routes;             // [N, L·k] int32 as rlt_model_input has it; undefined for none
};

// Inputs [L, P] of each token to the blocks, beside the embedding. Undefined without.
struct Inputs {
  at::Tensor table;  // [V, L·P]
  Linear proj;
  Norm norm;
};

// Maps [H, H] of the embedding to each stream but the first, and back. Empty without streams.
struct Streams {
  std::vector<Linear> spread, merge;
};

struct Groups;  // of block.h
struct Layers;  // likewise

class Transformer {
 public:
  // Takes its weights by name from weights; errors name one that is missing, superfluous or misshapen.
  Transformer(const rlt_model_config& config, const Weights& weights);

  // Hidden states after the last block and, unless norms come after sums, the final norm, [N, H] or [M, H]
  // fp32. With checkpoint, only each block's input is kept for backward, which computes the rest again.
  // load, if not null, becomes [2, E] as rlt_model_forward has it.
  at::Tensor forward(const Batch& batch, const AdapterPass& pass, bool checkpoint = false,
                     at::Tensor* load = nullptr) const;

  // Puts an adapter on the named linear layer, "layers.0.q", or experts, "layers.0.experts.down".
  void adapt(const std::string& layer, const at::Tensor& a, const at::Tensor& b, double scale,
             const at::Tensor& magnitude = {});

  const Config& config() const { return *config_; }
  const std::vector<Block>& blocks() const;
  const Groups& groups(size_t block) const;
  // How many there are from the first on.
  int64_t positions_left() const { return config_->max_positions - config_->first_position; }
  const at::Tensor& embed() const { return embed_; }          // [V, H]
  const at::Tensor& positions() const { return positions_; }  // [P, H], undefined with RoPE
  const Norm& norm() const { return norm_; }
  const Linear& head() const { return head_; }  // weight is embed() where tied
  const Inputs& inputs() const { return inputs_; }
  const Streams& streams() const { return streams_; }

 private:
  at::Tensor embed(const Batch& in) const;
  std::vector<at::Tensor> block_inputs(const at::Tensor& tokens, const at::Tensor& x,
                                       const AdapterPass& pass) const;
  void read_streams(Loader& load);
  bool grouped(int64_t rows, const AdapterPass& pass) const;
  bool joined(const AdapterPass& pass) const;
  bool adapt_experts(const std::string& layer, const Adapter& adapter);

  std::shared_ptr<const Config> config_;  // shared with the graphs of passes whose backward is due
  at::Tensor embed_, positions_,
      types_;             // [V, E], [P, E] from first_position on, [T, E]; E is H unless widened
  at::Tensor distances_;  // undefined without
  Norm embed_norm_, norm_;
  Linear embed_proj_, head_;
  Inputs inputs_;
  Streams streams_;
  std::shared_ptr<Layers> layers_;          // shared with those graphs too
  std::map<std::string, Linear*> linears_;  // point into layers_
};

}  // namespace rlt::nn
