#include "nn/encoder.h"

#include <ATen/ops/embedding.h>

#include <cmath>

#include "nn/activate.h"
#include "ops/packed.h"

namespace rlt::nn {
namespace {

at::Tensor add_norm(const at::Tensor& x, const at::Tensor& residual, const Norm& norm, double eps) {
  return std::get<0>(add_layer_norm(x, residual, norm.weight, norm.bias, eps));
}

}  // namespace

Encoder::Encoder(const rlt_model_config& config, const Weights& weights) : config_(config) {
  TORCH_CHECK(config.heads > 0 && config.hidden_size % config.heads == 0, "hidden size ", config.hidden_size,
              " does not divide into ", config.heads, " heads");
  TORCH_CHECK(config.activation >= 0 && config.activation <= RLT_ACT_RELU, "activation: unknown choice ",
              config.activation);
  TORCH_CHECK(config.first_position >= 0 && config.first_position < config.max_positions,
              "first_position: ", config.first_position, " of ", config.max_positions, " positions");
  const int64_t width = config.hidden_size, inner = config.intermediate_size;
  Loader load(weights);
  const auto load_norm = [&](const std::string& name) {
    return Norm{load.tensor(name + ".weight", {width}), load.tensor(name + ".bias", {width})};
  };
  words_ = load.tensor("embeddings.word_embeddings.weight", {config.vocab_size, width});
  positions_ = load.tensor("embeddings.position_embeddings.weight", {config.max_positions, width})
                   .slice(0, config.first_position);
  config_.max_positions -= config.first_position;
  if (config.token_types > 0) {
    types_ = load.tensor("embeddings.token_type_embeddings.weight", {config.token_types, width});
  }
  embedding_norm_ = load_norm("embeddings.LayerNorm");

  blocks_.resize(static_cast<size_t>(config.layers));
  int64_t index = 0;
  for (size_t n = 0; n < blocks_.size(); ++n) {
    Block& block = blocks_[n];
    const std::string at = "encoder.layer." + std::to_string(n) + ".";
    const auto take = [&](Linear& into, const std::string& name, int64_t in, int64_t out) {
      into.weight = load.tensor(at + name + ".weight", {out, in});
      into.bias = load.tensor(at + name + ".bias", {out});
      into.index = index++;
      linears_[at + name] = &into;
    };
    take(block.query, "attention.self.query", width, width);
    take(block.key, "attention.self.key", width, width);
    take(block.value, "attention.self.value", width, width);
    take(block.output, "attention.output.dense", width, width);
    block.attention_norm = load_norm(at + "attention.output.LayerNorm");
    take(block.up, "intermediate.dense", width, inner);
    take(block.down, "output.dense", inner, width);
    block.mlp_norm = load_norm(at + "output.LayerNorm");
  }
}

void Encoder::adapt(const std::string& layer, const at::Tensor& a, const at::Tensor& b, double scale) {
  nn::adapt(linears_, layer, a, b, scale);
}

at::Tensor Encoder::embed(const at::Tensor& tokens, const at::Tensor& positions) const {
  at::Tensor sum = at::embedding(words_, tokens);
  if (types_.defined()) sum.add_(types_.select(0, 0));
  return add_norm(sum, at::embedding(positions_, positions), embedding_norm_, config_.norm_eps);
}

at::Tensor Encoder::forward(const at::Tensor& tokens, const at::Tensor& positions,
                            const at::Tensor& cu_seqlens, const AdapterPass& pass) const {
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.hidden_size / config_.heads));
  const double eps = config_.norm_eps;
  at::Tensor x = embed(tokens, positions);
  for (const Block& block : blocks_) {
    const at::Tensor attended =
        std::get<0>(varlen_attention(block.query.forward(x, pass), block.key.forward(x, pass),
                                     block.value.forward(x, pass), cu_seqlens, config_.heads, scale));
    x = add_norm(block.output.forward(attended, pass), x, block.attention_norm, eps);
    const at::Tensor inner = activate(config_.activation, block.up.forward(x, pass));
    x = add_norm(block.down.forward(inner, pass), x, block.mlp_norm, eps);
  }
  return x;
}

}  // namespace rlt::nn
