#include "cuda/engine/weights.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "nn/joined_weight.h"
#include "ops/product.h"

namespace rlt::cuda {
at::Tensor Product::joined(c10::Device device) const {
  const bool there = std::all_of(layers_.begin(), layers_.end(),
                                 [&](const nn::Linear* l) { return l->weight.device() == device; });
  if (there) return nn::joined_weight(layers_);
  std::vector<at::Tensor> parts;
  for (const nn::Linear* layer : layers_) parts.push_back(layer->weight.detach().to(device));
  return at::cat(parts);
}

bool Product::refresh(c10::Device device) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor weight = joined(device);
  bool in_place = weight_.defined() && same_place(weight, weight_);
  weight_ = weight;
  if (std::any_of(layers_.begin(), layers_.end(), [](const nn::Linear* l) { return l->bias.defined(); })) {
    if (!bias_.defined()) {
      bias_ = at::zeros({weight_.size(0)}, weight_.options().dtype(at::kFloat));
      in_place = false;
    }
    int64_t row = 0;
    for (const nn::Linear* layer : layers_) {
      const int64_t rows = layer->weight.size(0);
      if (layer->bias.defined()) bias_.narrow(0, row, rows).copy_(layer->bias);
      row += rows;
    }
  }
  return set_adapter(1, layers_, device) && in_place;
}

bool Product::set_adapter(int32_t number, const std::vector<const nn::Linear*>& layers, c10::Device device) {
  const at::AutoDispatchBelowADInplaceOrView below;
  int64_t rank = 0;
  for (const nn::Linear* layer : layers) rank += layer->a.defined() ? layer->a.size(0) : 0;
  if (rank == 0) return adapters_.erase(number) == 0;
  LowRank& to = adapters_[number];
  const at::TensorOptions options = weight_.options().device(device);
  const bool in_place = to.a.defined() && to.a.size(0) == rank;
  if (!in_place) {
    to.a = at::empty({rank, weight_.size(1)}, options);
    to.b = at::zeros({weight_.size(0), rank}, options);
  }
  int64_t row = 0, column = 0;
  for (const nn::Linear* layer : layers) {
    const int64_t rows = layer->weight.size(0);
    if (layer->a.defined()) {
      TORCH_CHECK(!layer->magnitude.defined(), "an engine takes no magnitudes of DoRA");
      const int64_t r = layer->a.size(0);
      to.a.narrow(0, column, r).copy_(layer->a);
      to.b.narrow(0, row, rows).narrow(1, column, r).copy_(layer->b.mul(layer->scale));
      column += r;
    }
    row += rows;
  }
  return in_place;
}

at::Tensor Product::operator()(const at::Tensor& x, const std::vector<Range>& ranges) const {
  at::Tensor y = product(x, weight_);
  if (bias_.defined()) y.add_(bias_);
  add_adapters(y, x, ranges);
  return y;
}

void Product::into(at::Tensor& y, const at::Tensor& x) const {
  if (weight_.is_cuda() && type() != at::kFloat) {
    at::mm_out(y, x, weight_.t(), at::kFloat);
  } else {
    at::mm_out(y, x.to(at::kFloat), weight_.to(at::kFloat).t());
  }
  if (bias_.defined()) y.add_(bias_);
}

void Product::add_to(at::Tensor& y, const at::Tensor& x, const std::vector<Range>& ranges) const {
  product_into(y, x, weight_, 1);
  if (bias_.defined()) y.add_(bias_);
  add_adapters(y, x, ranges);
}

void Product::add_adapters(at::Tensor& y, const at::Tensor& x, const std::vector<Range>& ranges) const {
  for (const Range& range : ranges) {
    const auto found = adapters_.find(range.adapter);
    if (found == adapters_.end()) continue;
    at::Tensor part = y.narrow(0, range.begin, range.end - range.begin);
    const at::Tensor low = product(x.narrow(0, range.begin, range.end - range.begin), found->second.a);
    product_into(part, low, found->second.b, 1);
  }
}

}  // namespace rlt::cuda
