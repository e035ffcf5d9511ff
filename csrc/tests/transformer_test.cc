// Transformers against plain_transformer.h.
#include "nn/transformer.h"

#include <ATen/core/grad_mode.h>

#include <cstring>
#include <memory>
#include <utility>

#include "abi_support.h"
#include "check.h"
#include "nn/joined.h"
#include "plain_transformer.h"

namespace {

using rlt::nn::AdapterPass;
using rlt::nn::Transformer;
using rlt::nn::Weights;
using rlt::test::Adapter;
using rlt::test::Adapters;
using rlt::test::all_shapes;
using rlt::test::Batch;
using rlt::test::borders;
using rlt::test::distance;
using rlt::test::kAdapterScale;
using rlt::test::leaf;
using rlt::test::Lengths;
using rlt::test::linear_layers;
using rlt::test::Plain;
using rlt::test::Random;
using rlt::test::random_batch;
using rlt::test::random_weights;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::Shape;
using rlt::test::total;

const Lengths kLengths{5, 1, 17, 9, 30, 2};

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

// Gemma 3n's, but for the shares of its MLPs that are cut off.
Shape gemma3n() {
  return rlt::test::shape("gemma3n", [](Shape& s) {
    s.c.activation = RLT_ACT_GELU_TANH;
    s.c.post_norms = RLT_POST_NORMS_ALSO;
    s.c.qk_norm = 1;
    s.streams = 3;
  });
}

void add_streams(Random& random, const Shape& s, Weights& w) {
  const int64_t width = s.c.hidden_size, each = 5, rank = 4;
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    w[name + ".weight"] = random.normal({out, in}, 0.25);
  };
  const auto norm = [&](const std::string& name, int64_t n) {
    w[name + ".weight"] = random.normal({n}, 0.2, 1);
  };
  w["inputs.weight"] = random.normal({s.c.vocab_size, s.c.layers * each});
  linear("inputs_proj", width, s.c.layers * each);
  norm("inputs_norm", each);
  for (int64_t i = 0; i + 1 < s.streams; ++i) {
    linear("spread." + std::to_string(i), width, width);
    linear("merge." + std::to_string(i), width, width);
  }
  for (int64_t n = 0; n < s.c.layers; ++n) {
    const std::string at = "layers." + std::to_string(n) + ".";
    linear(at + "input_gate", width, each);
    linear(at + "input_proj", each, width);
    linear(at + "laurel_left", width, rank);
    linear(at + "laurel_right", rank, width);
    w[at + "streams_router.weight"] = random.normal({s.streams, width}, 3);
    linear(at + "predict", s.streams, s.streams * s.streams);
    linear(at + "correct", s.streams, s.streams);
    for (const char* const name : {"post_input_norm", "post_laurel_norm", "streams_norm", "streams_scale"})
      norm(at + name, width);
  }
}

TEST(transformer_trained_whole_equals_the_plain_one) {
  std::vector<Shape> shapes = all_shapes();
  shapes.push_back(gemma3n());
  for (Shape& s : shapes) {
    Random random(91);
    Weights weights = random_weights(random, s);
    if (s.streams > 0) add_streams(random, s, weights);
    const Weights ours = trained(weights, at::kFloat), reference = trained(weights, at::kDouble);
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
      if (s.c.distance && name.find(".k_norm.bias") != std::string::npos) continue;
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
      } else if (name.find("sum_norm.weight") != std::string::npos) {
        EXPECT_THROWS("sum_norm.bias", Transformer(s.config(), weights));
      } else if (name.find("up_gate") != std::string::npos) {  // then it would be the other
        EXPECT_THROWS("gate_up.weight is missing", Transformer(s.config(), weights));
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
  refuse("qk_norm is an RMS norm", [](Shape& s) {
    s.c.norm = RLT_NORM_LAYER;
    s.c.qk_norm = RLT_QK_NORM_HEADS;
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
