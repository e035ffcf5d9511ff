#include "nn/weights.h"

namespace rlt::nn {

at::Tensor Loader::find(const std::string& name, c10::IntArrayRef shape) {
  const auto found = weights_.find(name);
  TORCH_CHECK(found != weights_.end(), "weight ", name, " is missing");
  TORCH_CHECK(found->second.sizes() == shape, "weight ", name, " has shape ", found->second.sizes(),
              ", want ", shape);
  taken_.insert(name);
  return found->second;
}

at::Tensor Loader::tensor(const std::string& name, c10::IntArrayRef shape) {
  at::Tensor t = find(name, shape);
  TORCH_CHECK(t.scalar_type() == at::kFloat, "weight ", name, " is ", t.scalar_type(), ", want float32");
  return t;
}

at::Tensor Loader::stored(const std::string& name, c10::IntArrayRef shape) {
  at::Tensor t = find(name, shape);
  const at::ScalarType type = t.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "weight ", name, " is ", type,
              ", want float32, bfloat16 or float16");
  TORCH_CHECK(!t.requires_grad() || type == at::kFloat, "weight ", name, " is ", type,
              ": a weight that is trained must be float32");
  return t;
}

Linear Loader::linear(const std::string& name, int64_t in, int64_t out) {
  Linear layer;
  layer.weight = stored(name + ".weight", {out, in});
  if (has(name + ".bias")) layer.bias = tensor(name + ".bias", {out});
  return layer;
}

void Loader::finish() const {
  for (const auto& [name, weight] : weights_) {
    TORCH_CHECK(taken_.count(name) != 0, "the model has no place for weight ", name, " ", weight.sizes());
  }
}

void adapt(const std::map<std::string, Linear*>& linears, const std::string& layer, const at::Tensor& a,
           const at::Tensor& b, double scale) {
  const auto found = linears.find(layer);
  TORCH_CHECK(found != linears.end(), "the model has no linear layer ", layer);
  Linear& linear = *found->second;
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(1) && a.size(1) == linear.weight.size(1) &&
                  b.size(0) == linear.weight.size(0),
              "adapter of ", layer, ": A ", a.sizes(), " and B ", b.sizes(), " do not fit its weight ",
              linear.weight.sizes());
  TORCH_CHECK(!linear.weight.requires_grad(), "adapter of ", layer, ": its weight is trained itself");
  linear.a = a;
  linear.b = b;
  linear.scale = scale;
}

}  // namespace rlt::nn
