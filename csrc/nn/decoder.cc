#include "nn/decoder.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "kernels/parallel.h"
#include "nn/decoder_block.h"
#include "ops/packed.h"

namespace rlt::nn {
namespace {

Rope owned(const rlt_rope& table, int64_t rotary_dim) {
  TORCH_CHECK(table.inv_freq != nullptr, "a rope without inv_freq");
  TORCH_CHECK(table.switch_length >= 0 && (table.switch_length == 0 || table.long_inv_freq != nullptr),
              "a rope that switches at ", table.switch_length, " needs long_inv_freq");
  Rope rope;
  rope.inv_freq.assign(table.inv_freq, table.inv_freq + rotary_dim / 2);
  if (table.long_inv_freq != nullptr) {
    rope.long_inv_freq.assign(table.long_inv_freq, table.long_inv_freq + rotary_dim / 2);
  }
  rope.factor = table.factor;
  rope.long_factor = table.long_factor;
  rope.switch_length = table.switch_length;
  return rope;
}

void check_sizes(const rlt_decoder_config& c) {
  TORCH_CHECK(c.vocab_size > 0 && c.hidden_size > 0 && c.layers > 0 && c.head_dim > 0 &&
                  c.intermediate_size > 0 && c.max_positions > 0,
              "sizes must be positive: vocab_size ", c.vocab_size, ", hidden_size ", c.hidden_size,
              ", layers ", c.layers, ", head_dim ", c.head_dim, ", intermediate_size ", c.intermediate_size,
              ", max_positions ", c.max_positions);
  TORCH_CHECK(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0, c.heads,
              " heads do not divide into groups of ", c.kv_heads, " key heads");
  TORCH_CHECK(c.rotary_dim >= 0 && c.rotary_dim % 2 == 0 && c.rotary_dim <= c.head_dim, "rotary_dim ",
              c.rotary_dim, " must be even and at most head_dim ", c.head_dim);
  TORCH_CHECK(c.norm_eps >= 0 && c.attention_scale >= 0 && c.attention_softcap >= 0 && c.logit_softcap >= 0,
              "norm_eps, attention_scale and softcaps must not be negative");
}

void check_choices(const rlt_decoder_config& c) {
  const auto in_range = [](int32_t value, int32_t last, const char* what) {
    TORCH_CHECK(value >= 0 && value <= last, what, ": unknown choice ", value);
  };
  in_range(c.norm, RLT_NORM_LAYER, "norm");
  in_range(c.activation, RLT_ACT_RELU, "activation");
  in_range(c.qkv, RLT_QKV_INTERLEAVED, "qkv");
  in_range(c.residual, RLT_RESIDUAL_PARALLEL, "residual");
  TORCH_CHECK(c.qkv != RLT_QKV_INTERLEAVED || c.kv_heads == c.heads,
              "interleaved qkv needs a key head for each of ", c.heads, " heads, got ", c.kv_heads);
  TORCH_CHECK(!c.fused_gate_up || c.gated, "fused_gate_up without gated");
  TORCH_CHECK(!c.qk_norm || c.norm != RLT_NORM_LAYER, "qk_norm is an RMS norm: the others must be too");
}

// cos and sin of every row's angles.
Rotation rotate(const Rope& rope, const at::Tensor& positions, const int32_t* cu, int64_t sequences) {
  const int64_t rows = positions.numel(), half = static_cast<int64_t>(rope.inv_freq.size());
  Rotation out{at::empty({rows, half}, at::kFloat), at::empty({rows, half}, at::kFloat)};
  const int64_t* at = positions.const_data_ptr<int64_t>();
  float *cosines = out.cos.mutable_data_ptr<float>(), *sines = out.sin.mutable_data_ptr<float>();
  parallel_for(0, sequences, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const bool is_long = rope.switch_length > 0 && cu[s + 1] - cu[s] > rope.switch_length;
      const std::vector<double>& frequencies = is_long ? rope.long_inv_freq : rope.inv_freq;
      const double factor = is_long ? rope.long_factor : rope.factor;
      for (int64_t i = cu[s]; i < cu[s + 1]; ++i) {
        for (int64_t j = 0; j < half; ++j) {
          const double angle = static_cast<double>(at[i]) * frequencies[static_cast<size_t>(j)];
          cosines[i * half + j] = static_cast<float>(factor * std::cos(angle));
          sines[i * half + j] = static_cast<float>(factor * std::sin(angle));
        }
      }
    }
  });
  return out;
}

}  // namespace

DecoderConfig::DecoderConfig(const rlt_decoder_config& config) : rlt_decoder_config(config) {
  check_sizes(config);
  check_choices(config);
  TORCH_CHECK(config.windows != nullptr, "windows is NULL");
  layer_windows.assign(config.windows, config.windows + config.layers);
  for (const int64_t window : layer_windows) TORCH_CHECK(window >= 0, "a window of ", window, " keys");
  if (config.rotary_dim > 0) {
    TORCH_CHECK(config.ropes != nullptr && config.rope_tables != nullptr, "rotary_dim without ropes");
    layer_ropes.assign(config.ropes, config.ropes + config.layers);
    for (const int32_t rope : layer_ropes) {
      TORCH_CHECK(rope >= 0 && rope < config.n_ropes, "rope ", rope, " of ", config.n_ropes);
    }
    for (int32_t i = 0; i < config.n_ropes; ++i) {
      rope_list.push_back(owned(config.rope_tables[i], config.rotary_dim));
    }
  }
  windows = nullptr;  // the caller's: the vectors have them now
  ropes = nullptr;
  rope_tables = nullptr;
}

Decoder::Decoder(const rlt_decoder_config& config, const Weights& weights)
    : config_(std::make_shared<DecoderConfig>(config)) {
  const DecoderConfig& c = *config_;
  const int64_t width = c.hidden_size, queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  Loader load(weights);
  const auto norm = [&](const std::string& name, int64_t n) {
    DecoderNorm made{load.tensor(name + ".weight", {n}), {}};
    const bool may_lack_bias = c.bidirectional != 0 && !load.has(name + ".bias");
    if (c.norm == RLT_NORM_LAYER && !may_lack_bias) made.bias = load.tensor(name + ".bias", {n});
    return made;
  };
  embed_ = load.stored("embed.weight", {c.vocab_size, width});
  if (c.rotary_dim == 0) positions_ = load.tensor("positions.weight", {c.max_positions, width});
  if (c.embed_norm) embed_norm_ = norm("embed_norm", width);

  blocks_.resize(static_cast<size_t>(c.layers));
  int64_t index = 0;
  for (size_t n = 0; n < blocks_.size(); ++n) {
    DecoderBlock& block = blocks_[n];
    const std::string at = "layers." + std::to_string(n) + ".";
    const auto take = [&](Linear& into, const std::string& name, int64_t in, int64_t out) {
      into = load.linear(at + name, in, out);
      into.index = index++;
      linears_[at + name] = &into;
    };
    if (n > 0 || !c.embed_norm) block.attn_norm = norm(at + "attn_norm", width);
    if (c.qkv == RLT_QKV_SPLIT) {
      take(block.q, "q", width, queries);
      take(block.k, "k", width, keys);
      take(block.v, "v", width, keys);
    } else {
      take(block.qkv, "qkv", width, queries + 2 * keys);
    }
    if (c.qk_norm) {
      block.q_norm = norm(at + "q_norm", c.head_dim);
      block.k_norm = norm(at + "k_norm", c.head_dim);
    }
    take(block.o, "o", queries, width);
    if (c.residual != RLT_RESIDUAL_SHARED_NORM) block.mlp_norm = norm(at + "mlp_norm", width);
    if (c.fused_gate_up) {
      take(block.gate_up, "gate_up", width, 2 * c.intermediate_size);
    } else {
      if (c.gated) take(block.gate, "gate", width, c.intermediate_size);
      take(block.up, "up", width, c.intermediate_size);
    }
    take(block.down, "down", c.intermediate_size, width);
    if (c.post_norms) {
      block.post_attn_norm = norm(at + "post_attn_norm", width);
      block.post_mlp_norm = norm(at + "post_mlp_norm", width);
    }
  }
  norm_ = norm("norm", width);
  if (load.has("head.weight")) {
    head_ = load.linear("head", width, c.vocab_size);
  } else {
    head_.weight = embed_;
    if (load.has("head.bias")) head_.bias = load.tensor("head.bias", {c.vocab_size});
  }
  load.finish();
}

void Decoder::adapt(const std::string& layer, const at::Tensor& a, const at::Tensor& b, double scale) {
  nn::adapt(linears_, layer, a, b, scale);
}

at::Tensor Decoder::forward(const at::Tensor& tokens, const at::Tensor& positions,
                            const at::Tensor& cu_seqlens, const at::Tensor& continues,
                            const AdapterPass& pass, bool checkpoint) const {
  const DecoderConfig& c = *config_;
  BlockPass batch{config_, cu_seqlens, continues, {}, pass};
  const int32_t* cu = checked_cu_seqlens(cu_seqlens, tokens.numel());
  std::vector<Rotation> rotations;
  for (const Rope& rope : c.rope_list) {
    TORCH_CHECK(rope.switch_length == 0 || !continues.defined(),
                "a rope that switches by length does not let sequences continue another");
    rotations.push_back(rotate(rope, positions, cu, cu_seqlens.numel() - 1));
  }
  at::Tensor x = at::embedding(embed_, tokens).to(at::kFloat);
  if (c.embedding_scale != 1) x = x.mul(c.embedding_scale);
  if (c.rotary_dim == 0) x = x.add(at::embedding(positions_, positions));
  if (c.embed_norm) x = apply_norm(c, embed_norm_, x);
  for (size_t n = 0; n < blocks_.size(); ++n) {
    batch.window = c.layer_windows[n];
    if (c.rotary_dim > 0) batch.rotation = rotations[static_cast<size_t>(c.layer_ropes[n])];
    x = checkpoint ? checkpointed_block(blocks_[n], batch, x) : block_forward(blocks_[n], batch, x);
  }
  return apply_norm(c, norm_, x);
}

}  // namespace rlt::nn
