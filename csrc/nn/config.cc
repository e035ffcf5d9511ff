#include "nn/config.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace rlt::nn {
namespace {

Rope owned(const rlt_rope& table, int64_t rotary_dim) {
  TORCH_CHECK(table.inv_freq != nullptr, "a rope without inv_freq");
  TORCH_CHECK(table.features > 0 && table.features % 2 == 0 && table.features <= rotary_dim, "a rope of ",
              table.features, " features: want an even number up to rotary_dim ", rotary_dim);
  TORCH_CHECK(table.switch_length >= 0 && (table.switch_length == 0 || table.long_inv_freq != nullptr),
              "a rope that switches at ", table.switch_length, " needs long_inv_freq");
  Rope rope;
  rope.inv_freq.assign(table.inv_freq, table.inv_freq + table.features / 2);
  if (table.long_inv_freq != nullptr) {
    rope.long_inv_freq.assign(table.long_inv_freq, table.long_inv_freq + table.features / 2);
  }
  rope.factor = table.factor;
  rope.long_factor = table.long_factor;
  rope.switch_length = table.switch_length;
  return rope;
}

void check_sizes(const rlt_model_config& c) {
  TORCH_CHECK(c.vocab_size > 0 && c.hidden_size > 0 && c.layers > 0 && c.head_dim > 0 &&
                  c.intermediate_size > 0 && c.max_positions > 0,
              "sizes must be positive: vocab_size ", c.vocab_size, ", hidden_size ", c.hidden_size,
              ", layers ", c.layers, ", head_dim ", c.head_dim, ", intermediate_size ", c.intermediate_size,
              ", max_positions ", c.max_positions);
  TORCH_CHECK(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0, c.heads,
              " heads do not divide into groups of ", c.kv_heads, " key heads");
  TORCH_CHECK(
      c.rotary_dim >= 0 && c.rotary_dim % 2 == 0 && (c.rotary_dim <= c.head_dim || c.shapes != nullptr),
      "rotary_dim ", c.rotary_dim, " must be even and at most head_dim ", c.head_dim);
  TORCH_CHECK(c.embedding_size >= 0, "embedding_size must not be negative, got ", c.embedding_size);
  TORCH_CHECK(c.token_types >= 0, "token_types must not be negative, got ", c.token_types);
  TORCH_CHECK(c.first_position == 0 ||
                  (c.rotary_dim == 0 && c.first_position > 0 && c.first_position < c.max_positions),
              "first_position: ", c.first_position, " of ", c.rotary_dim == 0 ? c.max_positions : 0,
              " learned positions");
  TORCH_CHECK(c.norm_eps >= 0 && c.attention_scale >= 0 && c.attention_softcap >= 0 && c.logit_softcap >= 0 &&
                  c.logit_divisor >= 0 && c.query_growth >= 0,
              "norm_eps, attention_scale, softcaps, logit_divisor and query_growth must not be negative");
  TORCH_CHECK(c.experts >= 0 && c.shared_size >= 0, "experts and shared_size must not be negative, got ",
              c.experts, " and ", c.shared_size);
  TORCH_CHECK(
      c.experts == 0 || (c.experts_per_token > 0 && c.experts_per_token <= c.experts && c.expert_size > 0),
      "experts_per_token ", c.experts_per_token, " of ", c.experts, " experts of expert_size ",
      c.expert_size);
  TORCH_CHECK(c.expert_limit >= 0 && (c.expert_limit == 0 || c.expert_alpha > 0), "expert_limit ",
              c.expert_limit, " with expert_alpha ", c.expert_alpha);
  TORCH_CHECK(c.query_growth == 0 || c.query_span > 0, "query_growth needs a positive query_span, got ",
              c.query_span);
}

void check_choices(const rlt_model_config& c) {
  const auto in_range = [](int32_t value, int32_t last, const char* what) {
    TORCH_CHECK(value >= 0 && value <= last, what, ": unknown choice ", value);
  };
  in_range(c.norm, RLT_NORM_LAYER, "norm");
  in_range(c.activation, RLT_ACT_RELU, "activation");
  in_range(c.qkv, RLT_QKV_INTERLEAVED, "qkv");
  in_range(c.residual, RLT_RESIDUAL_PARALLEL, "residual");
  in_range(c.distance, RLT_DISTANCE_CONTENT, "distance");
  TORCH_CHECK(
      c.distance == RLT_DISTANCE_NONE || (c.rotary_dim == 0 && c.bidirectional && c.qkv == RLT_QKV_SPLIT &&
                                          c.heads == c.kv_heads && c.attention_softcap == 0),
      "distances are for bidirectional models without RoPE, with separate q, k and v and a key head for each "
      "head");
  in_range(c.post_norms, RLT_POST_NORMS_ONLY, "post_norms");
  in_range(c.qk_norm, RLT_QK_NORM_ALL, "qk_norm");
  TORCH_CHECK(c.qk_norm != RLT_QK_NORM_ALL || c.qkv == RLT_QKV_SPLIT,
              "a norm of all heads needs separate q and k");
  TORCH_CHECK(!c.rope_pairs || (c.qkv != RLT_QKV_INTERLEAVED && c.qk_norm != RLT_QK_NORM_HEADS),
              "rope_pairs is for models without interleaved qkv and without norms of each head");
  TORCH_CHECK(c.post_norms != RLT_POST_NORMS_ONLY || (c.residual == RLT_RESIDUAL_SEQUENTIAL && !c.embed_norm),
              "post_norms alone are for blocks of one sum after the other, without a norm of embeddings");
  TORCH_CHECK(!c.norm_after || (c.residual == RLT_RESIDUAL_SEQUENTIAL && !c.post_norms),
              "norm_after is for blocks of one sum after the other, without post_norms");
  TORCH_CHECK(c.qkv != RLT_QKV_INTERLEAVED || c.kv_heads == c.heads,
              "interleaved qkv needs a key head for each of ", c.heads, " heads, got ", c.kv_heads);
  TORCH_CHECK(
      c.experts == 0 || (c.gated && c.post_norms != RLT_POST_NORMS_ONLY && !c.norm_after &&
                         !c.bidirectional && !c.shared_layers && c.residual == RLT_RESIDUAL_SEQUENTIAL),
      "experts are for gated causal blocks of one sum after the other, with norms before");
  TORCH_CHECK(!c.gated_queries || (c.qkv == RLT_QKV_SPLIT && c.distance == RLT_DISTANCE_NONE),
              "gated_queries needs separate q, k and v, without distances");
  TORCH_CHECK((c.shapes == nullptr && !c.value_norm) ||
                  (c.qkv == RLT_QKV_SPLIT && !c.shared_layers && !c.gated_queries &&
                   c.distance == RLT_DISTANCE_NONE && !c.rope_pairs && c.qk_norm != RLT_QK_NORM_ALL),
              "shapes and value_norm need separate q, k and v, without shared_layers, gated_queries, "
              "distances, rope_pairs and norms of all heads");
  TORCH_CHECK(!c.fused_gate_up || c.gated, "fused_gate_up without gated");
  TORCH_CHECK(!c.qk_norm || c.norm != RLT_NORM_LAYER || c.norm_after,
              "qk_norm is an RMS norm without norm_after: the others must be too");
}

// The layers' shapes, of which those that read another's keys have as many heads.
std::vector<rlt_layer_shape> checked_shapes(const rlt_model_config& c) {
  std::vector<rlt_layer_shape> all;
  for (int64_t n = 0; n < c.layers; ++n) {
    const rlt_layer_shape s = c.shapes != nullptr
                                  ? c.shapes[n]
                                  : rlt_layer_shape{c.kv_heads, c.head_dim, c.intermediate_size, n, 0};
    TORCH_CHECK(s.kv_heads > 0 && s.head_dim > 0 && s.intermediate_size > 0 && c.heads % s.kv_heads == 0,
                "layer ", n, ": ", c.heads, " heads of ", s.head_dim, ", ", s.kv_heads,
                " key heads, intermediate_size ", s.intermediate_size);
    TORCH_CHECK(s.sparsity == 0 || (s.sparsity > 0 && s.sparsity < 1 && c.gated && !c.fused_gate_up),
                "layer ", n, ": sparsity ", s.sparsity,
                " is not from 0 to below 1, or of an MLP without gate and up");
    TORCH_CHECK(s.keys_of >= 0 && s.keys_of <= n, "layer ", n, ": keys of layer ", s.keys_of);
    if (s.keys_of < n) {
      const rlt_layer_shape& from = all[static_cast<size_t>(s.keys_of)];
      TORCH_CHECK(from.keys_of == s.keys_of && from.kv_heads == s.kv_heads && from.head_dim == s.head_dim,
                  "layer ", n, ": keys of layer ", s.keys_of, ", which makes none of ", s.kv_heads,
                  " heads of ", s.head_dim);
    }
    all.push_back(s);
  }
  return all;
}

}  // namespace

void Rope::angles(int64_t position, int64_t length, float* cosines, float* sines) const {
  const bool is_long = switch_length > 0 && length > switch_length;
  const std::vector<double>& frequencies = is_long ? long_inv_freq : inv_freq;
  const double f = is_long ? long_factor : factor;
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const double angle = static_cast<double>(position) * frequencies[j];
    cosines[j] = static_cast<float>(f * std::cos(angle));
    sines[j] = static_cast<float>(f * std::sin(angle));
  }
}

Config::Config(const rlt_model_config& config) : rlt_model_config(config) {
  check_sizes(config);
  check_choices(config);
  TORCH_CHECK(config.windows != nullptr, "windows is NULL");
  layer_windows.assign(config.windows, config.windows + config.layers);
  for (const int64_t window : layer_windows) {
    TORCH_CHECK(window >= 0, "a window of ", window, " keys");
    TORCH_CHECK(window == 0 || config.distance == RLT_DISTANCE_NONE,
                "distances are for layers without windows");
  }
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
  layer_shapes = checked_shapes(config);
  if (config.rotary_dim > 0) {
    for (size_t n = 0; n < layer_shapes.size(); ++n) {
      const size_t half = rope_list[static_cast<size_t>(layer_ropes[n])].inv_freq.size();
      TORCH_CHECK(2 * static_cast<int64_t>(half) <= layer_shapes[n].head_dim, "layer ", n, ": heads of ",
                  layer_shapes[n].head_dim, " with a rope of ", 2 * half, " features");
    }
  }
  shapes = nullptr;
  windows = nullptr;  // the caller's: the vectors have them now
  ropes = nullptr;
  rope_tables = nullptr;
}

const char* Config::why_mute() const {
  if (bidirectional) return "a bidirectional model does not generate";
  if (norm_after) return "a model whose norms come after its sums does not generate";
  if (embedding_size > 0) return "a model that widens its embeddings does not generate";
  if (shared_layers) return "a model whose layers are one does not generate";
  if (embed_norm) return "a model with a norm of its embeddings does not generate";
  if (token_types > 0) return "a model with types of tokens does not generate";
  if (first_position > 0) return "a model whose positions begin at another than the first does not generate";
  return "";
}

}  // namespace rlt::nn
