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

at::Tensor Loader::rows(const std::string& name, const QuantFormat& format, int64_t in, int64_t out) {
  const at::Tensor& t = weights_.at(name);
  const int64_t bytes = format.row_bytes(in);
  TORCH_CHECK(bytes > 0, "weight ", name, " needs a multiple of ", format.values, " inputs, the layer has ",
              in);
  TORCH_CHECK(
      t.scalar_type() == at::kByte && t.sizes() == c10::IntArrayRef({out, bytes}) && t.is_contiguous(),
      "weight ", name, " is ", t.scalar_type(), " ", t.sizes(), ", want dense uint8 [", out, ", ", bytes,
      "]");
  TORCH_CHECK(
      t.is_cpu(), "weight ", name, " is on ", t.device(),
      ": quantised weights run on the CPU only; load the model without --quantize, or use --device cpu");
  taken_.insert(name);
  return t;
}

Linear Loader::linear(const std::string& name, int64_t in, int64_t out) {
  Linear layer;
  for (int i = 0; i < kQuantFormats && !layer.quantised(); ++i) {
    const QuantFormat& format = quant_formats()[i];
    const std::string stored_as = name + "." + format.name;
    if (!has(stored_as)) continue;
    layer.weight = rows(stored_as, format, in, out);
    layer.quant = format.quant;
    layer.inputs = in;
  }
  if (!layer.quantised()) layer.weight = stored(name + ".weight", {out, in});
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
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(1) && a.size(1) == linear.in() &&
                  b.size(0) == linear.out(),
              "adapter of ", layer, ": A ", a.sizes(), " and B ", b.sizes(), " do not fit its weight [",
              linear.out(), ", ", linear.in(), "]");
  TORCH_CHECK(!linear.weight.requires_grad(), "adapter of ", layer, ": its weight is trained itself");
  linear.a = a;
  linear.b = b;
  linear.scale = scale;
}

}  // namespace rlt::nn
