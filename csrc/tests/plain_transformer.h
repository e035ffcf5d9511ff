// A transformer from composite float64 operators, one sequence at a time.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "ops/linear.h"
#include "transformer_fixture.h"

namespace rlt::test {

using Lengths = std::vector<int64_t>;

struct Batch {
  Lengths lengths;
  at::Tensor tokens, positions, cu, keys;
};

inline Batch random_batch(Random& random, const Lengths& lengths, int64_t vocab) {
  Batch batch{lengths, random.ints(total(lengths), vocab), {}, borders(lengths), {}};
  std::vector<int64_t> positions;
  for (const int64_t n : lengths) {
    for (int64_t i = 0; i < n; ++i) positions.push_back(i);
  }
  batch.positions = vector_of(positions);
  batch.keys = random.ints(total(lengths), 1000000);
  return batch;
}

struct Adapter {
  at::Tensor a, b;
};
using Adapters = std::map<std::string, Adapter>;
constexpr double kAdapterScale = 0.7;

// The reference transformer in float64.
class Plain {
 public:
  Plain(const Shape& s, const nn::Weights& weights, const Adapters& adapters, double dropout = 0)
      : s_(s), c_(s.c), weights_(weights), adapters_(adapters), dropout_(dropout) {}

  at::Tensor forward(const Batch& batch) {
    std::vector<at::Tensor> rows;
    int64_t first = 0;
    for (const int64_t n : batch.lengths) {
      keys_ = batch.keys.narrow(0, first, n);
      rows.push_back(sequence(batch.tokens.narrow(0, first, n)));
      first += n;
    }
    return at::cat(rows, 0);
  }

 private:
  at::Tensor sequence(const at::Tensor& tokens) {
    n_ = tokens.numel();
    at::Tensor x = at::embedding(weight("embed.weight"), tokens).mul(c_.embedding_scale);
    if (c_.rotary_dim == 0 && s_.absolute)
      x = x.add(weight("positions.weight").narrow(0, c_.first_position, n_));
    if (c_.token_types > 0) x = x.add(weight("types.weight")[0]);
    if (c_.embed_norm) x = norm(x, "embed_norm");
    if (c_.embedding_size > 0) x = x.matmul(weight("embed_proj.weight").t()).add(weight("embed_proj.bias"));
    if (s_.streams > 0) return norm(through_streams(tokens, x), "norm");
    for (layer_ = 0; layer_ < c_.layers; ++layer_) x = block(x);
    if (c_.norm_after) return x;
    return norm(x, "norm").div(c_.logit_divisor > 0 ? c_.logit_divisor : 1);
  }

  at::Tensor block(const at::Tensor& x) {
    if (c_.norm_after) {
      at::Tensor middle = norm(x.add(attention(x)), at("attn_norm"));
      if (s_.sums) middle = norm(x.add(middle), at("sum_norm"));
      return norm(middle.add(mlp(middle)), at("mlp_norm"));
    }
    const bool only = c_.post_norms == RLT_POST_NORMS_ONLY, bare = (c_.embed_norm && layer_ == 0) || only;
    const at::Tensor normed = bare ? x : norm(x, at("attn_norm"));
    at::Tensor y = x.add(post("post_attn_norm", attention(normed)));
    if (s_.streams > 0) {  // a LAuReL (Menghani 2024)
      const at::Tensor low = linear(linear(normed, "laurel_left"), "laurel_right");
      y = y.add(normed).add(norm(low, at("post_laurel_norm"))).div(std::sqrt(2.0));
    }
    if (c_.residual == RLT_RESIDUAL_SEQUENTIAL)
      return y.add(post("post_mlp_norm", mlp(only ? y : norm(y, at("mlp_norm")))));
    return y.add(mlp(norm(x, at(c_.residual == RLT_RESIDUAL_SHARED_NORM ? "attn_norm" : "mlp_norm"))));
  }

  // AltUp (Baykal 2023) with inputs to each block, as in Gemma 3n.
  at::Tensor through_streams(const at::Tensor& tokens, const at::Tensor& x) {
    const int64_t each = weight("inputs_norm.weight").size(0), count = s_.streams;
    const auto map = [&](const at::Tensor& t, const std::string& name) {
      return t.matmul(weight(name + ".weight").t());
    };
    const auto as_long = [](const at::Tensor& t, const at::Tensor& like) {
      return t.div(t.norm(2, {1}, true)).mul(like.norm(2, {1}, true));
    };
    const auto route = [&](const at::Tensor& t) {
      return map(norm(t, at("streams_norm")).div(c_.hidden_size), at("streams_router")).tanh();
    };
    const auto by_layer = [&](const at::Tensor& t) { return t.view({n_, c_.layers, each}); };
    const at::Tensor own = by_layer(at::embedding(weight("inputs.weight"), tokens)).mul(std::sqrt(each)),
                     made =
                         norm(by_layer(map(x, "inputs_proj").div(std::sqrt(c_.hidden_size))), "inputs_norm"),
                     inputs = own.add(made).div(std::sqrt(2.0));
    std::vector<at::Tensor> all{x};
    for (int64_t i = 0; i + 1 < count; ++i) all.push_back(as_long(map(x, "spread." + std::to_string(i)), x));
    for (layer_ = 0; layer_ < c_.layers; ++layer_) {
      const at::Tensor mixing = map(route(all[0]), at("predict")).view({n_, count, count});
      std::vector<at::Tensor> predicted = all;
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < count; ++j)
          predicted[i] = predicted[i].add(all[j].mul(mixing.select(1, i).narrow(1, j, 1)));
      }
      const at::Tensor y = block(predicted[0]), news = y.sub(predicted[0]),
                       share = map(route(y), at("correct")).add(1);
      for (int64_t i = 0; i < count; ++i) all[i] = predicted[i].add(news.mul(share.narrow(1, i, 1)));
      const at::Tensor gate = activated(linear(all[0].mul(weight(at("streams_scale.weight"))), "input_gate")),
                       more = norm(linear(gate.mul(inputs.select(1, layer_)), "input_proj"),
                                   at("post_input_norm"));
      for (int64_t i = 1; i < count; ++i) all[i] = all[i].add(more);
    }
    at::Tensor sum = all[0];
    for (int64_t i = 1; i < count; ++i)
      sum = sum.add(as_long(map(all[i], "merge." + std::to_string(i - 1)), all[0]));
    return sum.div(count);
  }

  int64_t stored() const { return c_.shared_layers ? 0 : layer_; }
  std::string at(const std::string& name) const { return "layers." + std::to_string(stored()) + "." + name; }
  at::Tensor weight(const std::string& name) const { return weights_.at(name).to(at::kDouble); }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor w = weight(name + ".weight");
    if (c_.norm == RLT_NORM_LAYER) {
      const at::Tensor bias = s_.norm_biases ? weight(name + ".bias") : at::Tensor();
      return at::layer_norm(x, {x.size(-1)}, w, bias, c_.norm_eps);
    }
    return x.mul(x.square().mean(-1, true).add(c_.norm_eps).rsqrt())
        .mul(c_.norm == RLT_NORM_RMS_PLUS_ONE ? w.add(1) : w);
  }
  at::Tensor post(const char* name, const at::Tensor& x) const {
    return c_.post_norms ? norm(x, at(name)) : x;
  }
  at::Tensor linear(const at::Tensor& x, const char* name, bool drops = true) const {
    const std::string full = at(name);
    at::Tensor y = x.matmul(weight(full + ".weight").t());
    if (s_.biases) y = y.add(weight(full + ".bias"));
    const auto found = adapters_.find(full);
    if (found == adapters_.end()) return y;
    at::Tensor dropped = x;
    if (dropout_ > 0 && drops) {
      const std::vector<Layer> layers = linear_layers(c_, stored());
      size_t i = 0;
      while (layers[i].name != full) ++i;
      dropped = x.mul(rlt::hash_dropout(
          at::ones(x.sizes(), at::kFloat), keys_,
          stored() * static_cast<int64_t>(layers.size()) + static_cast<int64_t>(i), dropout_));
    }
    return y.add(dropped.matmul(found->second.a.t()).matmul(found->second.b.t()), kAdapterScale);
  }
  at::Tensor turned(const at::Tensor& x) const {  // [n, d]
    if (c_.rotary_dim == 0) return x;
    const rlt_rope& table = s_.tables[static_cast<size_t>(s_.rope_of[static_cast<size_t>(layer_)])];
    const bool is_long = table.switch_length > 0 && n_ > table.switch_length;
    const at::Tensor angles = at::arange(n_, at::kDouble)
                                  .unsqueeze(1)
                                  .mul(vector_of(is_long ? s_.long_frequencies : s_.frequencies));
    const double factor = is_long ? table.long_factor : (table.factor == 0 ? 1 : table.factor);
    const int64_t half = c_.rotary_dim / 2;
    const at::Tensor cos = angles.cos().mul(factor), sin = angles.sin().mul(factor);
    if (c_.rope_pairs) {
      const auto parts = x.narrow(1, 0, 2 * half).reshape({n_, half, 2}).unbind(2);
      const at::Tensor a = parts[0].mul(cos).sub(parts[1].mul(sin)),
                       b = parts[1].mul(cos).add(parts[0].mul(sin));
      return at::cat(
          {at::stack({a, b}, 2).reshape({n_, 2 * half}), x.narrow(1, 2 * half, c_.head_dim - 2 * half)}, 1);
    }
    const at::Tensor low = x.narrow(1, 0, half), high = x.narrow(1, half, half);
    return at::cat({low.mul(cos).sub(high.mul(sin)), high.mul(cos).add(low.mul(sin)),
                    x.narrow(1, 2 * half, c_.head_dim - 2 * half)},
                   1);
  }
  at::Tensor attention(const at::Tensor& x) {
    const int64_t d = c_.head_dim;
    at::Tensor all;  // heads of q, then of k, then of v
    if (c_.qkv == RLT_QKV_SPLIT) {
      all = at::cat({linear(x, "q"), linear(x, "k"), linear(x, "v")}, 1);
    } else {
      all = linear(x, "qkv");
      if (c_.qkv == RLT_QKV_INTERLEAVED) {
        all = all.view({n_, c_.heads, 3, d}).transpose(1, 2).reshape({n_, 3 * c_.heads * d});
      }
    }
    if (c_.qk_norm == RLT_QK_NORM_ALL) {
      const auto parts = all.split_with_sizes({c_.heads * d, c_.kv_heads * d, c_.kv_heads * d}, 1);
      all = at::cat({norm(parts[0], at("q_norm")), norm(parts[1], at("k_norm")), parts[2]}, 1);
    }
    const auto head = [&](int64_t i) { return all.narrow(1, i * d, d); };
    const auto normed = [&](const at::Tensor& t, const char* name) {
      return c_.qk_norm == RLT_QK_NORM_HEADS ? norm(t, at(name)) : t;
    };
    const at::Tensor index = at::arange(n_, at::kLong), back = index.unsqueeze(1).sub(index.unsqueeze(0));
    const int64_t window = s_.windows[static_cast<size_t>(layer_)];
    at::Tensor hidden = c_.bidirectional ? back.gt(n_) : back.lt(0);
    if (window > 0) hidden = hidden.logical_or(back.abs().ge(window));
    at::Tensor far_q, far_k;  // of distances from -(n - 1) to n - 1
    if (c_.distance == RLT_DISTANCE_CONTENT) {
      const at::Tensor rows = weight("distances.weight").narrow(0, c_.max_positions - n_, 2 * n_ - 1);
      far_q = linear(rows, "q", false), far_k = linear(rows, "k", false);
    }
    // [n, n] of [n, 2n - 1]: row i has the column of distance i - j.
    const auto at_distance = [&](const at::Tensor& t) { return t.gather(1, back.add(n_ - 1)); };
    std::vector<at::Tensor> columns;
    for (int64_t h = 0; h < c_.heads; ++h) {
      const int64_t kv = h / (c_.heads / c_.kv_heads);
      const at::Tensor q = turned(normed(head(h), "q_norm")),
                       k = turned(normed(head(c_.heads + kv), "k_norm"));
      at::Tensor scores = q.matmul(k.t());
      if (c_.distance == RLT_DISTANCE_CONTENT) {
        // k_j of the distance i - j is row j, column i - j: gathered from the rows of j - i, which are turned
        // around.
        scores = scores.add(at_distance(q.matmul(far_k.narrow(1, h * d, d).t())))
                     .add(at_distance(k.matmul(far_q.narrow(1, h * d, d).t()).flip(1)).t());
      }
      scores = scores.mul(c_.attention_scale);
      if (c_.distance == RLT_DISTANCE_BIAS) {
        const at::Tensor bias = weight("distances.weight")[h].narrow(0, c_.max_positions - n_, 2 * n_ - 1);
        scores = scores.add(at_distance(bias.unsqueeze(0).expand({n_, 2 * n_ - 1})));
      }
      if (c_.query_growth > 0) {
        const at::Tensor spans = index.div(c_.query_span, "floor").to(at::kDouble).add(1);
        scores = scores.mul(spans.log().mul(c_.query_growth).add(1).unsqueeze(1));
      }
      if (c_.attention_softcap > 0)
        scores = scores.div(c_.attention_softcap).tanh().mul(c_.attention_softcap);
      columns.push_back(
          scores.masked_fill(hidden, -INFINITY).softmax(-1).matmul(head(c_.heads + c_.kv_heads + kv)));
    }
    return linear(at::cat(columns, 1), "o");
  }
  at::Tensor activated(const at::Tensor& x) const { return plain_activation(c_.activation, x); }
  at::Tensor mlp(const at::Tensor& x) const {
    if (!c_.gated) return linear(activated(linear(x, "up")), "down");
    if (!c_.fused_gate_up) return linear(activated(linear(x, "gate")).mul(linear(x, "up")), "down");
    auto parts = linear(x, up_first(c_) ? "up_gate" : "gate_up").split(c_.intermediate_size, 1);
    if (up_first(c_)) std::swap(parts[0], parts[1]);
    return linear(activated(parts[0]).mul(parts[1]), "down");
  }

  const Shape& s_;
  const rlt_model_config& c_;
  const nn::Weights& weights_;
  const Adapters& adapters_;
  double dropout_;
  at::Tensor keys_;
  int64_t n_ = 0, layer_ = 0;
};

}  // namespace rlt::test
