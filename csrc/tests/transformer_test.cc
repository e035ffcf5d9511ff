// Transformers against a reference from composite float64 operators, one sequence at a time.
#include "nn/transformer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <cstring>
#include <memory>
#include <utility>

#include "abi_support.h"
#include "check.h"
#include "nn/joined.h"
#include "ops/linear.h"
#include "transformer_fixture.h"

namespace {

using rlt::nn::AdapterPass;
using rlt::nn::Transformer;
using rlt::nn::Weights;
using rlt::test::all_shapes;
using rlt::test::borders;
using rlt::test::distance;
using rlt::test::leaf;
using rlt::test::linear_layers;
using rlt::test::Random;
using rlt::test::random_weights;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::Shape;
using rlt::test::total;
using Lengths = std::vector<int64_t>;

const Lengths kLengths{5, 1, 17, 9, 30, 2};

struct Batch {
  Lengths lengths;
  at::Tensor tokens, positions, cu, keys;
};

Batch random_batch(Random& random, const Lengths& lengths, int64_t vocab) {
  Batch batch{lengths, random.ints(total(lengths), vocab), {}, borders(lengths), {}};
  std::vector<int64_t> positions;
  for (const int64_t n : lengths) {
    for (int64_t i = 0; i < n; ++i) positions.push_back(i);
  }
  batch.positions = rlt::test::vector_of(positions);
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
  Plain(const Shape& s, const Weights& weights, const Adapters& adapters, double dropout = 0)
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
    for (layer_ = 0; layer_ < c_.layers; ++layer_) {
      if (c_.norm_after) {
        x = norm(x.add(attention(x)), at("attn_norm"));
        x = norm(x.add(mlp(x)), at("mlp_norm"));
        continue;
      }
      const bool bare = (c_.embed_norm && layer_ == 0) || c_.post_norms == RLT_POST_NORMS_ONLY;
      const at::Tensor attended = post("post_attn_norm", attention(bare ? x : norm(x, at("attn_norm"))));
      if (c_.residual == RLT_RESIDUAL_SEQUENTIAL) {
        x = x.add(attended);
        const bool only = c_.post_norms == RLT_POST_NORMS_ONLY;
        x = x.add(post("post_mlp_norm", mlp(only ? x : norm(x, at("mlp_norm")))));
      } else {
        const bool shared = c_.residual == RLT_RESIDUAL_SHARED_NORM;
        x = x.add(attended).add(mlp(norm(x, at(shared ? "attn_norm" : "mlp_norm"))));
      }
    }
    if (c_.norm_after) return x;
    return norm(x, "norm").div(c_.logit_divisor > 0 ? c_.logit_divisor : 1);
  }

  int64_t stored() const { return c_.shared_layers ? 0 : layer_; }
  std::string at(const char* name) const { return "layers." + std::to_string(stored()) + "." + name; }
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
      const std::vector<rlt::test::Layer> layers = linear_layers(c_, stored());
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
                                  .mul(rlt::test::vector_of(is_long ? s_.long_frequencies : s_.frequencies));
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
  at::Tensor activated(const at::Tensor& x) const {
    switch (c_.activation) {
      case RLT_ACT_SILU:
        return at::silu(x);
      case RLT_ACT_GELU:
        return at::gelu(x);
      case RLT_ACT_GELU_TANH:
        return at::gelu(x, "tanh");
      default:
        return at::relu(x);
    }
  }
  at::Tensor mlp(const at::Tensor& x) const {
    if (!c_.gated) return linear(activated(linear(x, "up")), "down");
    if (!c_.fused_gate_up) return linear(activated(linear(x, "gate")).mul(linear(x, "up")), "down");
    const auto parts = linear(x, "gate_up").split(c_.intermediate_size, 1);
    return linear(activated(parts[0]).mul(parts[1]), "down");
  }

  const Shape& s_;
  const rlt_model_config& c_;
  const Weights& weights_;
  const Adapters& adapters_;
  double dropout_;
  at::Tensor keys_;
  int64_t n_ = 0, layer_ = 0;
};

at::Tensor run(const Transformer& model, const Batch& batch, bool adapted, double dropout = 0,
               bool checkpoint = false, const at::Tensor& rows = {}) {
  AdapterPass pass;
  pass.on = adapted;
  pass.dropout = dropout;
  if (dropout > 0) pass.row_keys = batch.keys;
  return model.forward({batch.tokens, batch.positions, batch.cu, {}, rows, {}, {}}, pass, checkpoint);
}

// All weights as trained leaves, in the type of the pass.
Weights trained(const Weights& weights, at::ScalarType type) {
  Weights out;
  for (const auto& [name, w] : weights) out[name] = leaf(w, type);
  return out;
}

// Adapters on all linear layers except o of the last block.
Adapters adapters_for(Random& random, const Shape& s) {
  Adapters made;
  for (int64_t n = 0; n < rlt::test::stored_layers(s.c); ++n) {
    for (const rlt::test::Layer& layer : linear_layers(s.c, n)) {
      if (layer.name == "layers.1.o") continue;
      made[layer.name] = {random.normal({3, layer.in}, 0.3), random.normal({layer.out, 3}, 0.3)};
    }
  }
  return made;
}
Adapters leaves(const Adapters& adapters, at::ScalarType type) {
  Adapters out;
  for (const auto& [name, ab] : adapters) out[name] = {leaf(ab.a, type), leaf(ab.b, type)};
  return out;
}
void put_on(Transformer& decoder, const Adapters& adapters) {
  for (const auto& [name, ab] : adapters) decoder.adapt(name, ab.a, ab.b, kAdapterScale);
}

TEST(transformer_trained_whole_equals_the_plain_one) {
  for (Shape& s : all_shapes()) {
    Random random(91);
    const Weights weights = random_weights(random, s), ours = trained(weights, at::kFloat),
                  reference = trained(weights, at::kDouble);
    const Batch batch = random_batch(random, kLengths, s.c.vocab_size);
    const at::Tensor y = run(Transformer(s.config(), ours), batch, false);
    const at::Tensor want = Plain(s, reference, {}).forward(batch);
    EXPECT_AT_MOST(relative(y, want), 1e-5, "hidden states of " + s.name);
    const at::Tensor upstream = random.normal(y.sizes());
    y.backward(upstream);
    want.backward(upstream.to(at::kDouble));
    for (const auto& [name, w] : ours) {
      if (name == "head.weight") continue;
      // A bias of k shifts all scores of a query equally, so its gradient is only rounding error. No token
      // uses types other than the first or positions before the first, so the reference gradient is 0 there.
      if (name.find(".k.bias") != std::string::npos) continue;
      EXPECT_AT_MOST(relative(w.grad(), reference.at(name).grad()), 2e-4,
                     "gradient of " + name + " of " + s.name);
    }
  }
}

void compare_adapted(double dropout) {
  for (Shape& s : all_shapes()) {
    Random random(92);
    const Weights weights = random_weights(random, s);
    const Adapters made = adapters_for(random, s), ours = leaves(made, at::kFloat),
                   reference = leaves(made, at::kDouble);
    Transformer model(s.config(), weights);
    put_on(model, ours);
    const Batch batch = random_batch(random, kLengths, s.c.vocab_size);
    const at::Tensor y = run(model, batch, true, dropout),
                     want = Plain(s, weights, reference, dropout).forward(batch);
    EXPECT_AT_MOST(relative(y, want), 2e-5, "hidden states of " + s.name);
    const at::Tensor upstream = random.normal(y.sizes());
    y.backward(upstream);
    want.backward(upstream.to(at::kDouble));
    for (const auto& [name, ab] : ours) {
      EXPECT_AT_MOST(relative(ab.a.grad(), reference.at(name).a.grad()), 2e-4,
                     "a of " + name + " of " + s.name);
      EXPECT_AT_MOST(relative(ab.b.grad(), reference.at(name).b.grad()), 2e-4,
                     "b of " + name + " of " + s.name);
    }
    for (const auto& [name, w] : weights) EXPECT(!w.grad().defined());
    EXPECT(!run(model, batch, false).requires_grad());
    EXPECT_AT_MOST(relative(run(model, batch, false), Plain(s, weights, {}).forward(batch)), 1e-5,
                   "adapter off of " + s.name);
  }
}

TEST(transformer_with_adapters_equals_the_plain_one) { compare_adapted(0); }
TEST(transformer_with_dropout_equals_the_plain_one) { compare_adapted(0.3); }

TEST(transformer_of_wanted_rows_equals_those_of_all) {
  for (Shape& s : all_shapes()) {
    Random random(99);
    const Weights weights = random_weights(random, s);
    const Adapters made = adapters_for(random, s);
    const Batch batch = random_batch(random, kLengths, s.c.vocab_size);
    const at::Tensor rows = rlt::test::vector_of<int64_t>({4, 5, 5, 22, 63, 0});
    const at::Tensor upstream = random.normal({6, s.c.hidden_size});
    std::map<std::string, at::Tensor> all;
    for (const int kind : {0, 1, 2}) {  // select from all rows; only those rows; with checkpoints
      const Adapters ours = leaves(made, at::kFloat);
      Transformer model(s.config(), weights);
      put_on(model, ours);
      const at::Tensor y = kind == 0 ? run(model, batch, true, 0.2).index_select(0, rows)
                                     : run(model, batch, true, 0.2, kind == 2, rows);
      y.backward(upstream);
      const auto compare = [&](const std::string& what, const at::Tensor& t) {
        if (kind == 0) {
          all[what] = t;
        } else {
          EXPECT_AT_MOST(relative(t, all.at(what)), 2e-5, what + " of " + s.name);
        }
      };
      compare("hidden", y.detach());
      for (const auto& [name, ab] : ours) {
        compare(name + ".a", ab.a.grad());
        compare(name + ".b", ab.b.grad());
      }
    }
  }
}

TEST(packed_transformer_equals_one_by_one) {
  for (Shape& s : all_shapes()) {
    Random random(93);
    Transformer model(s.config(), random_weights(random, s));
    put_on(model, adapters_for(random, s));
    const Batch batch = random_batch(random, kLengths, s.c.vocab_size);
    const at::Tensor packed = run(model, batch, true, 0.2);
    int64_t first = 0;
    for (const int64_t n : kLengths) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, n); };
      const Batch one{{n}, part(batch.tokens), part(batch.positions), borders({n}), part(batch.keys)};
      EXPECT_AT_MOST(distance(run(model, one, true, 0.2), part(packed)), 2e-5,
                     s.name + ", sequence of " + std::to_string(n));
      first += n;
    }
    EXPECT_EQUAL(run(model, random_batch(random, {}, 5), true).sizes(),
                 c10::IntArrayRef({0, s.c.hidden_size}));
  }
}

// Gradients of adapters or of all weights, with and without checkpointing; run twice to check determinism.
TEST(checkpointed_transformer_gives_the_same_gradients) {
  for (Shape& s : all_shapes()) {
    Random random(94);
    const Weights weights = random_weights(random, s);
    const Adapters made = adapters_for(random, s);
    const Batch batch = random_batch(random, kLengths, s.c.vocab_size);
    const at::Tensor upstream = random.normal({total(kLengths), s.c.hidden_size});
    const auto gradients = [&](bool whole, bool checkpoint) {
      const Weights ours = whole ? trained(weights, at::kFloat) : weights;
      const Adapters adapters = leaves(made, at::kFloat);
      Transformer model(s.config(), ours);
      if (!whole) put_on(model, adapters);
      const at::Tensor y = run(model, batch, !whole, whole ? 0 : 0.3, checkpoint);
      y.backward(upstream);
      std::map<std::string, at::Tensor> found{{"hidden", y.detach()}};
      for (const auto& [name, w] : ours) {
        if (whole && name != "head.weight") found[name] = w.grad();
      }
      for (const auto& [name, ab] : adapters) {
        if (whole) continue;
        found[name + ".a"] = ab.a.grad();
        found[name + ".b"] = ab.b.grad();
      }
      return found;
    };
    for (const bool whole : {false, true}) {
      const auto want = gradients(whole, false), got = gradients(whole, true), again = gradients(whole, true);
      for (const auto& [name, grad] : want) {
        EXPECT_AT_MOST(relative(got.at(name), grad), 1e-6, name + " of " + s.name);
        EXPECT(same_bits(got.at(name), again.at(name)));
      }
    }
  }
}

// Updates an adapter the way the Go optimisers do: through the ABI, with lists of tensors.
void change(const Adapter& adapter) {
  rlt::test::Handles h;
  rlt_op add = 0;
  EXPECT_OK(rlt_op_find("aten::_foreach_add_", "Scalar", &add));
  const double one = 1;
  int64_t bits = 0;
  std::memcpy(&bits, &one, sizeof bits);
  const std::vector<int64_t> tape{
      RLT_ARG_TENSORS, 2,   static_cast<int64_t>(h.give(adapter.a)), static_cast<int64_t>(h.give(adapter.b)),
      RLT_ARG_SCALAR,  bits};
  int32_t got = 0;
  EXPECT_OK(
      rlt_op_call(add, RLT_NO_GRAD, tape.data(), static_cast<int32_t>(tape.size()), 2, nullptr, 0, &got));
}

// With block-by-block, joined (as on a GPU) and checkpointed passes: after an optimiser step, backward would
// mix old and new values, so it refuses.
TEST(backward_refuses_parameters_that_changed) {
  const bool before = std::exchange(rlt::nn::joins_on_cpu, true);
  for (const bool joins : {true, false}) {
    rlt::nn::joins_on_cpu = joins && rlt::test::device().is_cpu();
    for (const bool checkpoint : {false, true}) {
      Shape s("llama");
      Random random(97);
      Transformer model(s.config(), random_weights(random, s));
      const Adapters adapters = leaves(adapters_for(random, s), at::kFloat);
      put_on(model, adapters);
      const Batch batch = random_batch(random, kLengths, s.c.vocab_size);
      const auto loss = [&] { return run(model, batch, true, 0, checkpoint).sum(); };
      const at::Tensor old = loss();
      loss().backward();  // this pass shares the copies that the first pass made
      change(adapters.begin()->second);
      EXPECT_THROWS(checkpoint ? "changed after its forward pass" : "modified by an inplace operation",
                    old.backward());
      loss().backward();
    }
  }
  rlt::nn::joins_on_cpu = before;
}

// Backward works after the model has been freed.
TEST(a_graph_outlives_its_model) {
  const bool before = rlt::nn::joins_on_cpu;
  for (const bool joins : {true, false}) {
    rlt::nn::joins_on_cpu = joins && rlt::test::device().is_cpu();
    for (const bool checkpoint : {false, true}) {
      Shape s("llama");
      Random random(98);
      const Weights weights = random_weights(random, s);
      const Adapters made = adapters_for(random, s);
      const Batch batch = random_batch(random, kLengths, s.c.vocab_size);
      std::vector<at::Tensor> grads;
      for (const bool freed : {false, true}) {
        const Adapters adapters = leaves(made, at::kFloat);
        auto model = std::make_unique<Transformer>(s.config(), weights);
        put_on(*model, adapters);
        const at::Tensor y = run(*model, batch, true, 0, checkpoint).sum();
        if (freed) model.reset();
        y.backward();
        grads.push_back(adapters.begin()->second.a.grad());
      }
      EXPECT(same_bits(grads[0], grads[1]));
    }
  }
  rlt::nn::joins_on_cpu = before;
}

TEST(checkpointing_without_gradients_is_a_plain_pass) {
  Shape s("llama");
  Random random(95);
  const Transformer model(s.config(), random_weights(random, s));
  const Batch batch = random_batch(random, kLengths, s.c.vocab_size);
  const at::AutoGradMode off(false);
  EXPECT(same_bits(run(model, batch, true, 0, true), run(model, batch, true)));
}

TEST(transformer_names_the_weight_that_is_wrong) {
  for (Shape& s : all_shapes()) {
    Random random(96);
    const Weights good = random_weights(random, s);
    for (const auto& [name, w] : good) {
      Weights weights = good;
      weights[name] = at::empty({3, 1, 2}, at::kFloat);
      EXPECT_THROWS("weight " + name + " has shape", Transformer(s.config(), weights));
      weights.erase(name);
      const bool bias = name.find(".bias") != std::string::npos;
      if (name == "head.weight" || (name == "positions.weight" && s.c.distance) ||
          (bias && name.find("norm") == std::string::npos)) {
        Transformer(s.config(), weights);  // an optional weight
      } else if (name == "norm.bias") {    // then no norm has one
        EXPECT_THROWS("no place for weight layers.0.attn_norm.bias", Transformer(s.config(), weights));
      } else {
        EXPECT_THROWS("weight " + name + " is missing", Transformer(s.config(), weights));
      }
    }
    Weights weights = good;
    weights["layers.2.o.weight"] = random.normal({2, 2});
    EXPECT_THROWS("no place for weight layers.2.o.weight", Transformer(s.config(), weights));
  }
  Shape s("llama");
  Random random(97);
  Weights weights = random_weights(random, s);
  weights["norm.weight"] = weights["norm.weight"].to(at::kBFloat16);
  EXPECT_THROWS("weight norm.weight is BFloat16", Transformer(s.config(), weights));
  weights = random_weights(random, s);
  weights["embed.weight"] = leaf(weights["embed.weight"], at::kBFloat16);
  EXPECT_THROWS("trained must be float32", Transformer(s.config(), weights));
}

TEST(transformer_refuses_what_does_not_fit) {
  Random random(98);
  const auto refuse = [&](const std::string& part, void (*change)(Shape&)) {
    Shape s("llama");
    change(s);
    EXPECT_THROWS(part, Transformer(s.config(), random_weights(random, Shape("llama"))));
  };
  refuse("positive", [](Shape& s) { s.c.layers = 0; });
  refuse("positive", [](Shape& s) { s.c.hidden_size = -1; });
  refuse("key heads", [](Shape& s) { s.c.kv_heads = 3; });
  refuse("rotary_dim", [](Shape& s) { s.c.rotary_dim = 3; });
  refuse("rotary_dim", [](Shape& s) { s.c.rotary_dim = 8; });
  refuse("norm: unknown choice 3", [](Shape& s) { s.c.norm = 3; });
  refuse("activation: unknown", [](Shape& s) { s.c.activation = -1; });
  refuse("interleaved", [](Shape& s) { s.c.qkv = RLT_QKV_INTERLEAVED; });
  refuse("fused_gate_up", [](Shape& s) {
    s.c.fused_gate_up = 1;
    s.c.gated = 0;
  });
  refuse("window", [](Shape& s) { s.windows[1] = -1; });
  refuse("rope 1 of 1", [](Shape& s) { s.rope_of[0] = 1; });
  refuse("negative", [](Shape& s) { s.c.attention_softcap = -1; });
  refuse("negative", [](Shape& s) { s.c.token_types = -1; });
  refuse("first_position: 1 of 0 learned", [](Shape& s) { s.c.first_position = 1; });
  refuse("first_position: 64 of 64 learned", [](Shape& s) {
    s.c.rotary_dim = 0;
    s.c.first_position = 64;
  });
  refuse("post_norms: unknown choice 3", [](Shape& s) { s.c.post_norms = 3; });
  refuse("qk_norm: unknown choice 3", [](Shape& s) { s.c.qk_norm = 3; });
  refuse("separate q and k", [](Shape& s) {
    s.c.qk_norm = RLT_QK_NORM_ALL;
    s.c.qkv = RLT_QKV_FUSED;
  });
  refuse("rope_pairs", [](Shape& s) { s.c.rope_pairs = s.c.qk_norm = 1; });
  refuse("post_norms alone", [](Shape& s) {
    s.c.post_norms = RLT_POST_NORMS_ONLY;
    s.c.residual = RLT_RESIDUAL_PARALLEL;
  });
  refuse("positive query_span, got 0", [](Shape& s) { s.c.query_growth = 1; });
  refuse("norm_after", [](Shape& s) { s.c.norm_after = s.c.post_norms = 1; });
  refuse("distance: unknown choice 3", [](Shape& s) { s.c.distance = 3; });
  refuse("distances are for bidirectional models", [](Shape& s) { s.c.distance = 1; });
  refuse("embedding_size must not be negative", [](Shape& s) { s.c.embedding_size = -1; });
  refuse("norm_after", [](Shape& s) {
    s.c.norm_after = 1;
    s.c.residual = RLT_RESIDUAL_PARALLEL;
  });

  Shape s("llama");
  Weights weights = random_weights(random, s);
  weights["layers.0.q.weight"].requires_grad_(true);
  Transformer model(s.config(), weights);
  const at::Tensor a = random.normal({2, 20}), b = random.normal({24, 2});
  EXPECT_THROWS("trained itself", model.adapt("layers.0.q", a, b, 1));
  EXPECT_THROWS("no linear layer", model.adapt("layers.0.qkv", a, b, 1));
  EXPECT_THROWS("do not fit", model.adapt("layers.1.k", a, b, 1));
}

}  // namespace
