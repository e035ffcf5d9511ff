#include "nn/weights.h"

#include <algorithm>

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

int64_t Loader::outputs(const std::string& name) const {
  int64_t found = size(name + ".weight", 0);
  for (int i = 0; i < kQuantFormats && found == 0; ++i) found = size(name + "." + quant_formats()[i].name, 0);
  return found;
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

void adapt(const std::map<std::string, Linear*>& linears, const std::string& layer, const Adapter& adapter) {
  const auto found = linears.find(layer);
  TORCH_CHECK(found != linears.end(), "the model has no linear layer ", layer);
  Linear& linear = *found->second;
  const at::Tensor &a = adapter.a, &b = adapter.b, &magnitude = adapter.magnitude;
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(1) && a.size(1) == linear.in() &&
                  b.size(0) == linear.out(),
              "adapter of ", layer, ": A ", a.sizes(), " and B ", b.sizes(), " do not fit its weight [",
              linear.out(), ", ", linear.in(), "]");
  TORCH_CHECK(!linear.weight.requires_grad(), "adapter of ", layer, ": its weight is trained itself");
  TORCH_CHECK(!magnitude.defined() ||
                  (magnitude.requires_grad() && magnitude.sizes() == c10::IntArrayRef({linear.out()})),
              "adapter of ", layer, ": want ", linear.out(), " magnitudes that are trained");
  static_cast<Adapter&>(linear) = adapter;
}

at::Tensor Linear::decomposed(const at::Tensor& x, const AdapterPass& pass) const {
  const at::Tensor adapted = dense().to(at::kFloat).add(b.detach().matmul(a.detach()), scale);
  const at::Tensor factor = magnitude.div(adapted.norm(2, {1}));
  Linear plain = *this;
  plain.magnitude = plain.bias = at::Tensor();
  AdapterPass all;
  all.on = true;
  at::Tensor y;
  if (pass.dropout > 0) {
    const at::Tensor mask = hash_dropout(x.new_ones(x.sizes()), *pass.row_keys, index, pass.dropout);
    const at::Tensor kept = x.mul(mask);
    y = plain.forward(kept, all).mul(factor).add(plain.forward(x.sub(kept), {}));
  } else {
    y = plain.forward(x, all).mul(factor);
  }
  return bias.defined() ? y.add(bias) : y;
}

}  // namespace rlt::nn
