// A training step on a device: forward through adapters with dropout, the inputs of a loss, backward.
#pragma once

#include <string>

#include "ops/head.h"
#include "ops/packed.h"
#include "transformer_fixture.h"

namespace rlt::test {

class Step {
 public:
  // Linear layers, embedding and head have weights of `type`. The shape must outlive the step.
  Step(Shape& s, at::ScalarType type, const at::Device& place)
      : bidirectional_(s.c.bidirectional != 0),
        model_(s.config(), weights(s, type, place)),
        cu_(borders({5, 9, 1, 17})) {
    Random random(5);
    const int64_t n = total({5, 9, 1, 17});
    std::vector<int64_t> positions;
    for (const int64_t length : {5, 9, 1, 17}) {
      for (int64_t i = 0; i < length; ++i) positions.push_back(i);
    }
    const std::vector<int64_t> rows{1, 3, 8, 20, 30};
    tokens_ = random.ints(n, s.c.vocab_size).to(place);
    positions_ = vector_of(positions).to(place);
    keys_ = random.ints(n, 1000000).to(place);
    rows_ = vector_of(rows).to(place);
    targets_ = random.ints(static_cast<int64_t>(rows.size()), s.c.vocab_size).to(place);
    for (int64_t layer = 0; layer < s.c.layers; ++layer) {
      for (const Layer& l : linear_layers(s.c, layer)) {
        adapters_.push_back(random.normal({3, l.in}, 0.3).to(place).requires_grad_(true));
        adapters_.push_back(random.normal({l.out, 3}, 0.3).to(place).requires_grad_(true));
        model_.adapt(l.name, adapters_.end()[-2], adapters_.end()[-1], 0.7);
      }
    }
  }

  // Computes log-probabilities of some tokens (and their entropies, if asked) for a decoder, the mean of each
  // sequence for an encoder. With checkpoint, backward recomputes the blocks.
  void run(bool entropy, bool checkpoint) {
    nn::AdapterPass pass;
    pass.on = true;
    pass.dropout = 0.1;
    pass.row_keys = keys_;
    const at::Tensor hidden = model_.forward(
        {tokens_, positions_, cu_, {}, bidirectional_ ? at::Tensor() : rows_, {}, {}}, pass, checkpoint);
    at::Tensor loss;
    if (bidirectional_) {
      loss = segment_mean(hidden, cu_).sum();
    } else {
      const auto found = token_logprobs(hidden, model_.head().weight, std::nullopt, targets_, 0.9, 0, false);
      loss = std::get<0>(found).sum();
      if (entropy) loss = loss.add(std::get<1>(found).sum());
    }
    loss.backward();
  }

 private:
  static nn::Weights weights(const Shape& s, at::ScalarType type, const at::Device& place) {
    Random random(4);
    nn::Weights w = random_weights(random, s);
    for (auto& [name, t] : w) {
      const bool stored = t.dim() == 2 && name != "positions.weight" && name != "types.weight";
      t = (stored ? t.to(type) : t).to(place);
    }
    return w;
  }

  bool bidirectional_;
  nn::Transformer model_;
  at::Tensor cu_, tokens_, positions_, keys_, rows_, targets_;
  std::vector<at::Tensor> adapters_;
};

}  // namespace rlt::test
