// Small transformers with random weights that cover every configuration choice.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "nn/transformer.h"
#include "support.h"

namespace rlt::test {

// A configuration and the arrays it points to.
struct Shape {
  explicit Shape(std::string named) : name(std::move(named)) {
    c.vocab_size = 31;
    c.hidden_size = 20;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = 2;
    c.head_dim = 6;
    c.intermediate_size = 28;
    c.max_positions = 64;
    c.rotary_dim = 6;
    c.gated = 1;
    c.norm_eps = 1e-5;
    c.attention_scale = 0.4;
    c.embedding_scale = 1;
    frequencies = {1, 0.3, 0.05};
    windows = {0, 0};
    rope_of = {0, 0};
    tables.resize(1);
  }
  // The result points into this object, which must outlive it.
  const rlt_model_config& config() {
    for (rlt_rope& table : tables) {
      table.inv_freq = frequencies.data();
      table.features = c.rotary_dim;
      if (table.factor == 0) table.factor = 1;
      if (table.switch_length > 0) table.long_inv_freq = long_frequencies.data();
    }
    c.windows = windows.data();
    c.ropes = rope_of.data();
    c.rope_tables = tables.data();
    c.n_ropes = static_cast<int32_t>(tables.size());
    return c;
  }

  std::string name;
  rlt_model_config c{};
  bool biases = false, norm_biases = true, tied = false, absolute = true;
  bool sums = false;    // with sum_norm
  int64_t streams = 0;  // of Gemma 3n, with what its blocks have beside these
  std::vector<double> frequencies, long_frequencies;
  std::vector<int64_t> windows;
  std::vector<int32_t> rope_of;
  std::vector<rlt_rope> tables;
};

template <typename Change>
Shape shape(const std::string& name, const Change& change) {
  Shape s(name);
  change(s);
  return s;
}

// BERT's blocks (Devlin 2019).
inline void post_norm(Shape& s) {
  s.c.norm = RLT_NORM_LAYER;
  s.c.norm_after = s.c.embed_norm = s.c.bidirectional = s.biases = s.tied = true;
  s.c.kv_heads = 4;
  s.c.gated = 0;
  s.c.activation = RLT_ACT_GELU;
  s.c.rotary_dim = 0;
}

// Covers each choice of rlt_model_config at least once, in combinations that real model families use.
inline std::vector<Shape> all_shapes() {
  return {
      shape("llama", [](Shape&) {}),
      shape("qwen2", [](Shape& s) { s.biases = s.tied = true; }),
      shape("qwen3",
            [](Shape& s) {
              s.c.qk_norm = 1;
              s.c.logit_divisor = 1.5;
            }),
      shape("gemma2",
            [](Shape& s) {
              s.c.norm = RLT_NORM_RMS_PLUS_ONE;
              s.c.activation = RLT_ACT_GELU_TANH;
              s.c.post_norms = s.tied = true;
              s.c.embedding_scale = std::sqrt(20.0);
              s.c.attention_softcap = 3;
              s.windows = {5, 0};
            }),
      shape("gemma3",
            [](Shape& s) {
              s.c.norm = RLT_NORM_RMS_PLUS_ONE;
              s.c.activation = RLT_ACT_GELU_TANH;
              s.c.post_norms = s.c.qk_norm = s.tied = true;
              s.windows = {4, 0};
              s.tables.push_back({});
              s.tables[1].factor = 0.5;
              s.rope_of = {1, 0};
            }),
      shape("phi3",
            [](Shape& s) {
              s.c.qkv = RLT_QKV_FUSED;
              s.c.fused_gate_up = 1;
              s.c.rotary_dim = 4;
              s.frequencies = {1, 0.2};
              s.long_frequencies = {0.7, 0.02};
              s.tables[0].switch_length = 9;
              s.tables[0].factor = 1.1;
              s.tables[0].long_factor = 1.3;
            }),
      shape("olmo2",
            [](Shape& s) {
              s.c.post_norms = RLT_POST_NORMS_ONLY;
              s.c.qk_norm = RLT_QK_NORM_ALL;
              s.windows = {3, 0};
            }),
      shape("cohere2",
            [](Shape& s) {
              s.c.norm = RLT_NORM_LAYER;
              s.norm_biases = false;
              s.c.residual = RLT_RESIDUAL_SHARED_NORM;
              s.c.rope_pairs = s.tied = true;
              s.c.logit_divisor = 4;
            }),
      shape("glm4",
            [](Shape& s) {
              s.c.post_norms = RLT_POST_NORMS_ALSO;
              s.c.rope_pairs = s.c.fused_gate_up = s.biases = true;
              s.c.rotary_dim = 4;
              s.frequencies = {1, 0.2};
            }),
      shape("ministral3",
            [](Shape& s) {
              s.c.query_growth = 0.7;
              s.c.query_span = 5;
            }),
      shape("phi",
            [](Shape& s) {
              s.c.norm = RLT_NORM_LAYER;
              s.c.residual = RLT_RESIDUAL_SHARED_NORM;
              s.c.gated = 0;
              s.c.activation = RLT_ACT_GELU_TANH;
              s.c.rotary_dim = 2;
              s.frequencies = {0.5};
              s.biases = true;
            }),
      shape("gpt_neox",
            [](Shape& s) {
              s.c.norm = RLT_NORM_LAYER;
              s.c.residual = RLT_RESIDUAL_PARALLEL;
              s.c.qkv = RLT_QKV_INTERLEAVED;
              s.c.kv_heads = 4;
              s.c.gated = 0;
              s.c.activation = RLT_ACT_GELU;
              s.biases = true;
            }),
      shape("gpt2",
            [](Shape& s) {
              s.c.norm = RLT_NORM_LAYER;
              s.c.qkv = RLT_QKV_FUSED;
              s.c.kv_heads = 4;
              s.c.gated = 0;
              s.c.activation = RLT_ACT_GELU_TANH;
              s.c.rotary_dim = 0;
              s.biases = s.tied = true;
            }),
      shape("opt",
            [](Shape& s) {
              s.c.gated = 0;
              s.c.activation = RLT_ACT_RELU;
              s.c.rotary_dim = 0;
            }),
      shape("silu_plain", [](Shape& s) { s.c.gated = 0; }),
      shape("modernbert",
            [](Shape& s) {
              s.c.norm = RLT_NORM_LAYER;
              s.norm_biases = false;
              s.c.embed_norm = s.c.bidirectional = s.c.fused_gate_up = s.tied = true;
              s.c.qkv = RLT_QKV_FUSED;
              s.c.kv_heads = 4;
              s.c.activation = RLT_ACT_GELU;
              s.windows = {0, 4};
              s.tables.push_back({});
              s.tables[1].factor = 0.5;
              s.rope_of = {1, 0};
            }),
      shape("bert",
            [](Shape& s) {
              post_norm(s);
              s.c.token_types = 2;
            }),
      shape("roberta",
            [](Shape& s) {
              post_norm(s);
              s.c.token_types = 1;
              s.c.first_position = 2;
            }),
      shape("distilbert", [](Shape& s) { post_norm(s); }),
      shape("albert",
            [](Shape& s) {
              post_norm(s);
              s.c.token_types = 2;
              s.c.embedding_size = 12;
              s.c.layers = 3;
              s.c.shared_layers = 1;
              s.windows = {0, 0, 0};
            }),
      shape("mpnet",
            [](Shape& s) {
              post_norm(s);
              s.c.first_position = 2;
              s.c.distance = RLT_DISTANCE_BIAS;
            }),
      shape("deberta",
            [](Shape& s) {
              post_norm(s);
              s.absolute = false;
              s.c.distance = RLT_DISTANCE_CONTENT;
            }),
      shape("jina_code",
            [](Shape& s) {
              post_norm(s);
              s.absolute = false;
              s.sums = true;
              s.c.gated = s.c.fused_gate_up = true;
              s.c.qk_norm = RLT_QK_NORM_ALL;
              s.c.distance = RLT_DISTANCE_BIAS;
            }),
  };
}

// Whether an MLP's fused layer has up before gate, as jina-embeddings-v2-base-code.
inline bool up_first(const rlt_model_config& c) { return c.norm_after && c.fused_gate_up; }

// How many layers have weights of their own.
inline int64_t stored_layers(const rlt_model_config& c) { return c.shared_layers ? 1 : c.layers; }

// A linear layer with its inputs and outputs. linear_layers lists those of block n, ordered by dropout index.
struct Layer {
  std::string name;
  int64_t in, out;
};
inline std::vector<Layer> linear_layers(const rlt_model_config& c, int64_t n) {
  const int64_t h = c.hidden_size, q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim,
                inner = c.intermediate_size;
  std::vector<Layer> layers;
  const auto add = [&](const char* name, int64_t in, int64_t out) {
    layers.push_back({"layers." + std::to_string(n) + "." + name, in, out});
  };
  if (c.qkv == RLT_QKV_SPLIT) {
    add("q", h, q);
    add("k", h, kv);
    add("v", h, kv);
  } else {
    add("qkv", h, q + 2 * kv);
  }
  add("o", q, h);
  if (c.fused_gate_up) {
    add(up_first(c) ? "up_gate" : "gate_up", h, 2 * inner);
  } else {
    if (c.gated) add("gate", h, inner);
    add("up", h, inner);
  }
  add("down", inner, h);
  return layers;
}

inline nn::Weights random_weights(Random& random, const Shape& s) {
  const rlt_model_config& c = s.c;
  nn::Weights w;
  const auto norm = [&](const std::string& name, int64_t n) {
    w[name + ".weight"] = random.normal({n}, 0.2, c.norm == RLT_NORM_RMS_PLUS_ONE ? 0 : 1);
    if (c.norm == RLT_NORM_LAYER && s.norm_biases) w[name + ".bias"] = random.normal({n}, 0.2);
  };
  const int64_t narrow = c.embedding_size > 0 ? c.embedding_size : c.hidden_size,
                far = 2 * c.max_positions - 1;
  w["embed.weight"] = random.normal({c.vocab_size, narrow});
  if (c.rotary_dim == 0 && s.absolute) w["positions.weight"] = random.normal({c.max_positions, narrow});
  if (c.token_types > 0) w["types.weight"] = random.normal({c.token_types, narrow});
  if (c.embed_norm) norm("embed_norm", narrow);
  if (c.embedding_size > 0) {
    w["embed_proj.weight"] = random.normal({c.hidden_size, narrow}, 0.25);
    w["embed_proj.bias"] = random.normal({c.hidden_size}, 0.2);
  }
  if (c.distance == RLT_DISTANCE_BIAS) w["distances.weight"] = random.normal({c.heads, far});
  if (c.distance == RLT_DISTANCE_CONTENT) w["distances.weight"] = random.normal({far, c.hidden_size});
  for (int64_t n = 0; n < stored_layers(c); ++n) {
    const std::string at = "layers." + std::to_string(n) + ".";
    const bool before = c.post_norms != RLT_POST_NORMS_ONLY, all = c.qk_norm == RLT_QK_NORM_ALL;
    if (before && (n > 0 || !c.embed_norm || c.norm_after)) norm(at + "attn_norm", c.hidden_size);
    if (s.sums) norm(at + "sum_norm", c.hidden_size);
    if (before && c.residual != RLT_RESIDUAL_SHARED_NORM) norm(at + "mlp_norm", c.hidden_size);
    if (c.qk_norm) {
      norm(at + "q_norm", (all ? c.heads : 1) * c.head_dim);
      norm(at + "k_norm", (all ? c.kv_heads : 1) * c.head_dim);
    }
    if (c.post_norms) {
      norm(at + "post_attn_norm", c.hidden_size);
      norm(at + "post_mlp_norm", c.hidden_size);
    }
    for (const Layer& layer : linear_layers(c, n)) {
      w[layer.name + ".weight"] = random.normal({layer.out, layer.in}, 0.25);
      if (s.biases) w[layer.name + ".bias"] = random.normal({layer.out}, 0.2);
    }
  }
  if (!c.norm_after) norm("norm", c.hidden_size);
  if (!s.tied) w["head.weight"] = random.normal({c.vocab_size, c.hidden_size}, 0.2);
  return w;
}

}  // namespace rlt::test
