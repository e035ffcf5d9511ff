// A small decoder with random weights for any configuration, and the expected output of its engine.
#pragma once

#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "nn/transformer.h"
#include "ops/head.h"
#include "support.h"

namespace rlt::test {

// A configuration and the arrays it points to.
struct DecoderChoices {
  DecoderChoices() {
    config.vocab_size = 50;
    config.hidden_size = 24;
    config.layers = 2;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 8;
    config.intermediate_size = 40;
    config.max_positions = 128;
    config.rotary_dim = 8;
    config.norm = RLT_NORM_RMS;
    config.activation = RLT_ACT_SILU;
    config.gated = 1;
    config.norm_eps = 1e-5;
    config.attention_scale = 0.35;
    config.embedding_scale = 1;
  }

  // The result points into this object.
  const rlt_model_config& get() {
    windows.resize(static_cast<size_t>(config.layers));
    ropes.resize(static_cast<size_t>(config.layers));
    for (int64_t i = 0; i < config.rotary_dim / 2; ++i) {
      frequencies.push_back(
          std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim)));
      slow.push_back(frequencies.back() / 4);
    }
    const int64_t turned = config.rotary_dim;
    tables = {{frequencies.data(), slow.data(), 1, 1.25, switch_length, turned},
              {slow.data(), nullptr, 1, 1, 0, turned}};
    config.windows = windows.data();
    config.ropes = ropes.data();
    config.rope_tables = tables.data();
    config.n_ropes = 2;
    return config;
  }

  rlt_model_config config{};
  std::vector<int64_t> windows;
  std::vector<int32_t> ropes;
  std::vector<double> frequencies, slow;
  std::vector<rlt_rope> tables;
  int64_t switch_length = 0;
  bool biases = false, norm_biases = true, tied = true;
  at::ScalarType type = at::kFloat;  // of linear weights
};

inline nn::Weights decoder_weights(const DecoderChoices& choices, Random& random) {
  const rlt_model_config& c = choices.config;
  nn::Weights w;
  const auto norm = [&](const std::string& name, int64_t n) {
    w[name + ".weight"] = random.normal({n}, 0.2, 1);
    if (c.norm == RLT_NORM_LAYER && choices.norm_biases) w[name + ".bias"] = random.normal({n}, 0.2);
  };
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    w[name + ".weight"] = random.normal({out, in}, 0.25).to(choices.type);
    if (choices.biases) w[name + ".bias"] = random.normal({out}, 0.2);
  };
  const int64_t queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  w["embed.weight"] = random.normal({c.vocab_size, c.hidden_size}, 0.5).to(choices.type);
  if (c.rotary_dim == 0) w["positions.weight"] = random.normal({c.max_positions, c.hidden_size});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".";
    const bool before = c.post_norms != RLT_POST_NORMS_ONLY, all = c.qk_norm == RLT_QK_NORM_ALL;
    if (before) norm(at + "attn_norm", c.hidden_size);
    if (c.qkv == RLT_QKV_SPLIT) {
      linear(at + "q", c.hidden_size, queries);
      linear(at + "k", c.hidden_size, keys);
      linear(at + "v", c.hidden_size, keys);
    } else {
      linear(at + "qkv", c.hidden_size, queries + 2 * keys);
    }
    if (c.qk_norm) {
      norm(at + "q_norm", (all ? c.heads : 1) * c.head_dim);
      norm(at + "k_norm", (all ? c.kv_heads : 1) * c.head_dim);
    }
    linear(at + "o", queries, c.hidden_size);
    if (before && c.residual != RLT_RESIDUAL_SHARED_NORM) norm(at + "mlp_norm", c.hidden_size);
    if (c.fused_gate_up) {
      linear(at + "gate_up", c.hidden_size, 2 * c.intermediate_size);
    } else {
      if (c.gated) linear(at + "gate", c.hidden_size, c.intermediate_size);
      linear(at + "up", c.hidden_size, c.intermediate_size);
    }
    linear(at + "down", c.intermediate_size, c.hidden_size);
    if (c.post_norms) {
      norm(at + "post_attn_norm", c.hidden_size);
      norm(at + "post_mlp_norm", c.hidden_size);
    }
  }
  norm("norm", c.hidden_size);
  if (!choices.tied) linear("head", c.hidden_size, c.vocab_size);
  return w;
}

// Hidden states of ids, by a forward pass without a cache.
inline at::Tensor hidden_states(const nn::Transformer& decoder, const std::vector<int32_t>& ids,
                                bool adapter) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> tokens(ids.begin(), ids.end()), positions;
  for (size_t i = 0; i < ids.size(); ++i) positions.push_back(static_cast<int64_t>(i));
  nn::AdapterPass pass;
  pass.on = adapter;
  return decoder.forward(
      {vector_of(tokens), vector_of(positions), borders({static_cast<int64_t>(ids.size())}), {}, {}, {}, {}},
      pass);
}

// Log-probabilities of the next token after each of ids, [n, V].
inline at::Tensor full_forward(const nn::Transformer& decoder, const std::vector<int32_t>& ids,
                               bool adapter) {
  const nn::Linear& head = decoder.head();
  at::Tensor logits = at::linear(hidden_states(decoder, ids, adapter), head.weight.to(at::kFloat));
  if (head.bias.defined()) logits = logits.add(head.bias);
  const double cap = decoder.config().logit_softcap;
  if (cap > 0) logits = at::tanh(logits.div(cap)).mul(cap);
  return at::log_softmax(logits, 1);
}

// The log-probabilities of a completion as training computes them, [n].
inline at::Tensor trained_logprobs(const nn::Transformer& decoder, const std::vector<int32_t>& prompt,
                                   const std::vector<int32_t>& completion) {
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), completion.begin(), completion.end() - 1);
  const auto n = static_cast<int64_t>(completion.size());
  const at::Tensor hidden = hidden_states(decoder, ids, true);
  const nn::Linear& head = decoder.head();
  const OptionalTensor bias = head.bias.defined() ? OptionalTensor(head.bias) : std::nullopt;
  return std::get<0>(token_logprobs(hidden.narrow(0, hidden.size(0) - n, n), head.weight, bias,
                                    vector_of(std::vector<int64_t>(completion.begin(), completion.end())), 1,
                                    decoder.config().logit_softcap, false));
}

// A sample's tokens and their log-probabilities.
struct Completion {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, raw;
  int32_t reason = RLT_GOES_ON;

  // The CPU kernels give equal bits. Elsewhere tokens must be equal, and log-probabilities close.
  bool operator==(const Completion& o) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                        [](float x, float y) { return exact() ? x == y : std::abs(x - y) < 0.05f; });
    };
    return tokens == o.tokens && same(logprobs, o.logprobs) && same(raw, o.raw) && reason == o.reason;
  }
};

using Completions = std::map<std::pair<int64_t, int32_t>, Completion>;  // by request and sample

inline void note(Completions& all, const rlt_event& e) {
  Completion& c = all[{e.request, e.sample}];
  EXPECT_EQUAL(c.reason, int32_t{RLT_GOES_ON});
  c.reason = e.reason;
  if (e.token < 0) return;
  c.tokens.push_back(e.token);
  c.logprobs.push_back(e.logprob);
  c.raw.push_back(e.raw);
}

// Runs the engine until it has no work left.
inline Completions run(engine::Engine& engine, int64_t max_tokens) {
  Completions all;
  for (;;) {
    const std::vector<rlt_event>& events = engine.step(max_tokens);
    for (const rlt_event& e : events) note(all, e);
    if (events.empty() && engine.idle()) return all;
  }
}

inline std::vector<int32_t> prompt_of(Random& random, int64_t n, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random.below(vocab)));
  return ids;
}

inline rlt_request request_of(int32_t samples, int64_t max_new, uint64_t seed = 1) {
  rlt_request r{};
  r.samples = samples;
  r.max_new = max_new;
  r.sampling.temperature = 1;
  r.seed = seed;
  return r;
}

}  // namespace rlt::test
