#include "nn/encoder.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>

#include <cmath>

#include "ops/packed.h"

namespace rlt::nn {
namespace {

// Looks weights up by name and checks their shapes.
class Loader {
 public:
  explicit Loader(const Weights& weights) : weights_(weights) {}

  at::Tensor tensor(const std::string& name, c10::IntArrayRef shape) const {
    const auto found = weights_.find(name);
    TORCH_CHECK(found != weights_.end(), "weight ", name, " is missing");
    TORCH_CHECK(found->second.sizes() == shape, "weight ", name, " has shape ", found->second.sizes(),
                ", want ", shape);
    TORCH_CHECK(found->second.scalar_type() == at::kFloat, "weight ", name, " is ",
                found->second.scalar_type(), ", want float32");
    return found->second;
  }
  Norm norm(const std::string& name, int64_t width) const {
    return {tensor(name + ".weight", {width}), tensor(name + ".bias", {width})};
  }
  Linear linear(const std::string& name, int64_t in, int64_t out) const {
    Linear layer;
    layer.weight = tensor(name + ".weight", {out, in});
    layer.bias = tensor(name + ".bias", {out});
    return layer;
  }

 private:
  const Weights& weights_;
};

at::Tensor add_norm(const at::Tensor& x, const at::Tensor& residual, const Norm& norm, double eps) {
  return std::get<0>(add_layer_norm(x, residual, norm.weight, norm.bias, eps));
}

}  // namespace

Encoder::Encoder(const rlt_model_config& config, const Weights& weights) : config_(config) {
  TORCH_CHECK(config.heads > 0 && config.hidden_size % config.heads == 0, "hidden size ", config.hidden_size,
              " does not divide into ", config.heads, " heads");
  const Loader load(weights);
  const int64_t width = config.hidden_size, inner = config.intermediate_size;
  words_ = load.tensor("embeddings.word_embeddings.weight", {config.vocab_size, width});
  positions_ = load.tensor("embeddings.position_embeddings.weight", {config.max_positions, width});
  types_ = load.tensor("embeddings.token_type_embeddings.weight", {config.token_types, width});
  embedding_norm_ = load.norm("embeddings.LayerNorm", width);

  blocks_.resize(static_cast<size_t>(config.layers));
  int64_t index = 0;
  for (size_t n = 0; n < blocks_.size(); ++n) {
    Block& block = blocks_[n];
    const std::string at = "encoder.layer." + std::to_string(n) + ".";
    const auto take = [&](Linear& into, const std::string& name, int64_t in, int64_t out) {
      into = load.linear(at + name, in, out);
      into.index = index++;
      linears_[at + name] = &into;
    };
    take(block.query, "attention.self.query", width, width);
    take(block.key, "attention.self.key", width, width);
    take(block.value, "attention.self.value", width, width);
    take(block.output, "attention.output.dense", width, width);
    block.attention_norm = load.norm(at + "attention.output.LayerNorm", width);
    take(block.up, "intermediate.dense", width, inner);
    take(block.down, "output.dense", inner, width);
    block.mlp_norm = load.norm(at + "output.LayerNorm", width);
  }
}

void Encoder::adapt(const std::string& layer, const at::Tensor& a, const at::Tensor& b, double scale) {
  const auto found = linears_.find(layer);
  TORCH_CHECK(found != linears_.end(), "the model has no linear layer ", layer);
  Linear& linear = *found->second;
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(1) && a.size(1) == linear.weight.size(1) &&
                  b.size(0) == linear.weight.size(0),
              "adapter of ", layer, ": A ", a.sizes(), " and B ", b.sizes(), " do not fit its weight ",
              linear.weight.sizes());
  linear.a = a;
  linear.b = b;
  linear.scale = scale;
}

at::Tensor Encoder::embed(const at::Tensor& tokens, const at::Tensor& positions) const {
  at::Tensor sum = at::embedding(words_, tokens);
  sum.add_(types_.select(0, 0));
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
    const at::Tensor inner = at::gelu(block.up.forward(x, pass));
    x = add_norm(block.down.forward(inner, pass), x, block.mlp_norm, eps);
  }
  return x;
}

}  // namespace rlt::nn
