#include "nn/encoder.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <string>

#include "check.h"
#include "encoder_fixture.h"
#include "ops/linear.h"
#include "support.h"

namespace {

using rlt::nn::AdapterPass;
using rlt::nn::Encoder;
using rlt::nn::Weights;
using rlt::test::borders;
using rlt::test::distance;
using rlt::test::kConfig;
using rlt::test::leaf;
using rlt::test::linear_layers;
using rlt::test::Random;
using rlt::test::random_weights;
using rlt::test::relative;
using rlt::test::same_bits;
using rlt::test::total;
using Lengths = std::vector<int64_t>;

struct Adapter {
  at::Tensor a, b;
};
using Adapters = std::map<std::string, Adapter>;

struct Batch {
  Lengths lengths;
  at::Tensor tokens, positions, cu, keys;
};

Batch random_batch(Random& random, const Lengths& lengths) {
  Batch batch{lengths, random.ints(total(lengths), kConfig.vocab_size), {}, borders(lengths), {}};
  std::vector<int64_t> positions;
  for (const int64_t n : lengths) {
    for (int64_t i = 0; i < n; ++i) positions.push_back(i);
  }
  batch.positions = rlt::test::vector_of(positions);
  batch.keys = random.ints(total(lengths), 1000000);
  return batch;
}

at::Tensor run(const Encoder& encoder, const Batch& batch, bool adapted, double dropout = 0) {
  AdapterPass pass;
  pass.on = adapted;
  pass.dropout = dropout;
  if (dropout > 0) pass.row_keys = batch.keys;
  return encoder.forward(batch.tokens, batch.positions, batch.cu, pass);
}

// The encoder as BERT's paper has it, on sequences padded to one length, of composite float64 operators.
class Padded {
 public:
  Padded(const Weights& weights, const Adapters& adapters, double scale, double dropout)
      : weights_(weights), adapters_(adapters), scale_(scale), dropout_(dropout) {}

  // Hidden states of the tokens that are not padding, packed.
  at::Tensor forward(const Batch& batch) {
    batch_ = &batch;
    sequences_ = static_cast<int64_t>(batch.lengths.size());
    longest_ = *std::max_element(batch.lengths.begin(), batch.lengths.end());
    const at::Tensor tokens = at::zeros({sequences_, longest_}, at::kLong);
    at::Tensor mask = at::zeros({sequences_, 1, 1, longest_}, at::kDouble);
    int64_t first = 0;
    for (int64_t s = 0; s < sequences_; ++s) {
      const int64_t n = batch.lengths[static_cast<size_t>(s)];
      tokens[s].narrow(0, 0, n).copy_(batch.tokens.narrow(0, first, n));
      mask[s].narrow(2, n, longest_ - n).fill_(-1e30);
      first += n;
    }
    at::Tensor x = at::embedding(weight("embeddings.word_embeddings.weight"), tokens)
                       .add(weight("embeddings.position_embeddings.weight").narrow(0, 0, longest_))
                       .add(weight("embeddings.token_type_embeddings.weight").select(0, 0));
    x = norm(x, "embeddings.LayerNorm");
    for (int64_t layer = 0; layer < kConfig.layers; ++layer) {
      const std::string at = "encoder.layer." + std::to_string(layer) + ".";
      const at::Tensor q = split(linear(x, at + "attention.self.query")),
                       k = split(linear(x, at + "attention.self.key")),
                       v = split(linear(x, at + "attention.self.value"));
      const double scale = 1 / std::sqrt(static_cast<double>(kConfig.hidden_size / kConfig.heads));
      const at::Tensor probs = q.matmul(k.transpose(-1, -2)).mul(scale).add(mask).softmax(-1);
      const at::Tensor mixed =
          probs.matmul(v).transpose(1, 2).reshape({sequences_, longest_, kConfig.hidden_size});
      x = norm(x.add(linear(mixed, at + "attention.output.dense")), at + "attention.output.LayerNorm");
      const at::Tensor inner = at::gelu(linear(x, at + "intermediate.dense"));
      x = norm(x.add(linear(inner, at + "output.dense")), at + "output.LayerNorm");
    }
    return pack(x);
  }

 private:
  at::Tensor weight(const std::string& name) const { return weights_.at(name).to(at::kDouble); }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return at::layer_norm(x, {kConfig.hidden_size}, weight(name + ".weight"), weight(name + ".bias"),
                          kConfig.norm_eps);
  }
  at::Tensor split(const at::Tensor& x) const {
    return x.view({sequences_, longest_, kConfig.heads, -1}).transpose(1, 2);
  }
  at::Tensor pack(const at::Tensor& x) const {
    std::vector<at::Tensor> rows;
    for (int64_t s = 0; s < sequences_; ++s) {
      rows.push_back(x[s].narrow(0, 0, batch_->lengths[static_cast<size_t>(s)]));
    }
    return at::cat(rows, 0);
  }
  // What the packed op drops, put where the tokens are in the padded batch; padding keeps everything.
  at::Tensor mask_of(const at::Tensor& x, const std::string& name) const {
    const auto layers = linear_layers();
    const int64_t index = std::find(layers.begin(), layers.end(), name) - layers.begin();
    const at::Tensor packed = rlt::hash_dropout(at::ones({batch_->keys.numel(), x.size(2)}, at::kFloat),
                                                batch_->keys, index, dropout_);
    at::Tensor mask = at::ones(x.sizes(), at::kDouble);
    int64_t first = 0;
    for (int64_t s = 0; s < sequences_; ++s) {
      const int64_t n = batch_->lengths[static_cast<size_t>(s)];
      mask[s].narrow(0, 0, n).copy_(packed.narrow(0, first, n));
      first += n;
    }
    return mask;
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = at::linear(x, weight(name + ".weight"), weight(name + ".bias"));
    const auto found = adapters_.find(name);
    if (found == adapters_.end()) return y;
    const at::Tensor dropped = dropout_ > 0 ? x.mul(mask_of(x, name)) : x;
    return y.add(at::linear(at::linear(dropped, found->second.a), found->second.b), scale_);
  }

  const Weights& weights_;
  const Adapters& adapters_;
  double scale_, dropout_;
  const Batch* batch_ = nullptr;
  int64_t sequences_ = 0, longest_ = 0;
};

// Adapters on all linear layers but one, so that a frozen layer lies between adapted ones.
struct Adapted {
  Adapters ours, reference;
};

Adapted adapt_all(Random& random, Encoder& encoder, const Weights& weights, double scale) {
  Adapted made;
  for (const std::string& name : linear_layers()) {
    if (name == "encoder.layer.1.attention.self.key") continue;
    const at::Tensor& w = weights.at(name + ".weight");
    const at::Tensor a = random.normal({3, w.size(1)}, 0.3), b = random.normal({w.size(0), 3}, 0.3);
    made.ours[name] = {leaf(a), leaf(b)};
    made.reference[name] = {leaf(a, at::kDouble), leaf(b, at::kDouble)};
    encoder.adapt(name, made.ours[name].a, made.ours[name].b, scale);
  }
  return made;
}

const Lengths kLengths{5, 1, 17, 30, 2};

TEST(packed_encoder_equals_the_padded_one) {
  Random random(41);
  const Weights weights = random_weights(random);
  const Encoder encoder(kConfig, weights);
  const Batch batch = random_batch(random, kLengths);
  const Adapters none;
  EXPECT_AT_MOST(distance(run(encoder, batch, false), Padded(weights, none, 0, 0).forward(batch)), 1e-5,
                 "hidden states");
}

TEST(encoder_with_adapters_equals_the_padded_one) {
  Random random(42);
  const Weights weights = random_weights(random);
  for (const double dropout : {0.0, 0.3}) {
    Encoder encoder(kConfig, weights);
    const Adapted adapted = adapt_all(random, encoder, weights, 0.5);
    const Batch batch = random_batch(random, kLengths);
    const at::Tensor y = run(encoder, batch, true, dropout);
    const at::Tensor want = Padded(weights, adapted.reference, 0.5, dropout).forward(batch);
    EXPECT_AT_MOST(distance(y, want), 2e-5, "hidden states at dropout " + std::to_string(dropout));
    const at::Tensor upstream = random.normal(y.sizes());
    y.backward(upstream);
    want.backward(upstream.to(at::kDouble));
    for (const auto& [name, adapter] : adapted.ours) {
      const Adapter& reference = adapted.reference.at(name);
      EXPECT_AT_MOST(relative(adapter.a.grad(), reference.a.grad()), 1e-4, "gradient of a of " + name);
      EXPECT_AT_MOST(relative(adapter.b.grad(), reference.b.grad()), 1e-4, "gradient of b of " + name);
    }
  }
}

TEST(encoder_with_its_adapters_off_is_the_base) {
  Random random(43);
  const Weights weights = random_weights(random);
  const Encoder base(kConfig, weights);
  Encoder adapted(kConfig, weights);
  adapt_all(random, adapted, weights, 0.5);
  const Batch batch = random_batch(random, kLengths);
  EXPECT(same_bits(run(base, batch, false), run(adapted, batch, false)));
  EXPECT(same_bits(run(base, batch, false), run(base, batch, true)));
  EXPECT(distance(run(adapted, batch, true), run(base, batch, false)) > 0.01);
  EXPECT(!run(adapted, batch, false).requires_grad());
}

TEST(encoder_packed_equals_one_by_one) {
  Random random(44);
  const Weights weights = random_weights(random);
  Encoder encoder(kConfig, weights);
  adapt_all(random, encoder, weights, 0.5);
  const Batch batch = random_batch(random, kLengths);
  const at::Tensor packed = run(encoder, batch, true, 0.2);
  int64_t first = 0;
  for (const int64_t n : kLengths) {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, n); };
    const Batch one{{n}, part(batch.tokens), part(batch.positions), borders({n}), part(batch.keys)};
    EXPECT_AT_MOST(distance(run(encoder, one, true, 0.2), part(packed)), 1e-5,
                   "sequence of " + std::to_string(n));
    first += n;
  }
}

TEST(encoder_of_an_empty_batch) {
  Random random(45);
  const Weights weights = random_weights(random);
  Encoder encoder(kConfig, weights);
  adapt_all(random, encoder, weights, 0.5);
  const at::Tensor y = run(encoder, random_batch(random, {}), true);
  EXPECT_EQUAL(y.sizes(), c10::IntArrayRef({0, kConfig.hidden_size}));
}

TEST(encoder_never_changes_its_weights) {
  Random random(46);
  const Weights weights = random_weights(random);
  Weights before;
  for (const auto& [name, w] : weights) before[name] = w.clone();
  Encoder encoder(kConfig, weights);
  adapt_all(random, encoder, weights, 0.5);
  run(encoder, random_batch(random, kLengths), true).sum().backward();
  for (const auto& [name, w] : weights) EXPECT(same_bits(w, before.at(name)) && !w.grad().defined());
}

TEST(encoder_twice_is_bitwise_equal) {
  Random random(47);
  const Weights weights = random_weights(random);
  Encoder encoder(kConfig, weights);
  const Adapted adapted = adapt_all(random, encoder, weights, 0.5);
  const Batch batch = random_batch(random, kLengths);
  const at::Tensor upstream = random.normal({total(kLengths), kConfig.hidden_size});
  at::Tensor first;
  std::map<std::string, Adapter> grads;
  for (int pass = 0; pass < 4; ++pass) {
    const at::Tensor shift = at::zeros({pass * 11 + 1});  // moves the next allocations
    const at::Tensor y = run(encoder, batch, true, 0.1);
    y.backward(upstream);
    for (const auto& [name, adapter] : adapted.ours) {
      if (pass == 0) {
        grads[name] = {adapter.a.grad().clone(), adapter.b.grad().clone()};
      } else {
        EXPECT(same_bits(adapter.a.grad(), grads[name].a) && same_bits(adapter.b.grad(), grads[name].b));
      }
      at::Tensor a = adapter.a, b = adapter.b;
      a.mutable_grad().reset();
      b.mutable_grad().reset();
    }
    if (pass == 0) first = y.detach();
    EXPECT(same_bits(y, first));
  }
}

TEST(encoder_names_the_weight_that_is_wrong) {
  Random random(48);
  const Weights good = random_weights(random);
  const auto with = [&](const std::string& name, const at::Tensor& t) {
    Weights weights = good;
    weights[name] = t;
    return Encoder(kConfig, weights);
  };
  for (const auto& [name, w] : good) {
    Weights weights = good;
    weights.erase(name);
    EXPECT_THROWS("weight " + name + " is missing", Encoder(kConfig, weights));
    EXPECT_THROWS("weight " + name + " has shape", with(name, at::zeros({3})));
    EXPECT_THROWS("weight " + name + " is Half", with(name, w.to(at::kHalf)));
  }
  EXPECT_THROWS("has shape", with("embeddings.word_embeddings.weight", at::Tensor()));
  rlt_model_config config = kConfig;
  config.heads = 5;
  EXPECT_THROWS("heads", Encoder(config, good));
  config.heads = 0;
  EXPECT_THROWS("heads", Encoder(config, good));
  config = kConfig;
  config.activation = 4;
  EXPECT_THROWS("activation: unknown choice 4", Encoder(config, good));
  config = kConfig;
  config.first_position = config.max_positions;
  EXPECT_THROWS("first_position", Encoder(config, good));
}

// Positions that begin further down the table are those of a table that is cut off there.
TEST(encoder_without_types_at_a_later_position) {
  Random random(50);
  Weights weights = random_weights(random);
  weights.erase("embeddings.token_type_embeddings.weight");
  rlt_model_config config = kConfig;
  config.token_types = 0;
  config.activation = RLT_ACT_SILU;
  config.first_position = 5;
  const Encoder encoder(config, weights);
  EXPECT_EQUAL(encoder.config().max_positions, kConfig.max_positions - 5);
  const Batch batch = random_batch(random, {3, 9});
  const at::Tensor y = run(encoder, batch, false);
  at::Tensor& table = weights["embeddings.position_embeddings.weight"];
  table = table.narrow(0, 5, kConfig.max_positions - 5).clone();
  config.first_position = 0;
  config.max_positions -= 5;
  EXPECT(same_bits(y, run(Encoder(config, weights), batch, false)));
  config.activation = RLT_ACT_GELU;
  EXPECT(distance(y, run(Encoder(config, weights), batch, false)) > 1e-3);
}

TEST(encoder_refuses_adapters_that_do_not_fit) {
  Random random(49);
  Encoder encoder(kConfig, random_weights(random));
  const std::string query = "encoder.layer.0.attention.self.query";
  const int64_t h = kConfig.hidden_size;
  EXPECT_THROWS("no linear layer", encoder.adapt("encoder.layer.9.output.dense", {}, {}, 1));
  EXPECT_THROWS("do not fit", encoder.adapt(query, {}, {}, 1));
  EXPECT_THROWS("do not fit", encoder.adapt(query, random.normal({2, h + 1}), random.normal({h, 2}), 1));
  EXPECT_THROWS("do not fit", encoder.adapt(query, random.normal({2, h}), random.normal({h, 3}), 1));
}

}  // namespace
