#include "nn/linear_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "kernels/buffer.h"
#include "kernels/parallel.h"
#include "kernels/tiles.h"

namespace rlt::nn {

namespace {

LinearGroup::Seen see(const at::Tensor& t) {
  return {t, t.defined() ? t.unsafeGetTensorImpl()->version_counter().current_version() : 0};
}

}  // namespace

LinearGroup::LinearGroup(std::vector<const Linear*> layers, bool gated)
    : layers_(std::move(layers)), gated_(gated) {
  if (!gated) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const int64_t rows = layers_[i]->weight.size(0);
      for (int64_t row = 0; row < rows; row += kPanel)
        panels_.push_back({i, row, std::min(kPanel, rows - row)});
    }
    return;
  }
  const size_t up = layers_.size() - 1;
  const int64_t inner = layers_[0]->weight.size(0) / (up == 0 ? 2 : 1), up_row = up == 0 ? inner : 0;
  for (int64_t row = 0; row < inner; row += kPanel) {
    const int64_t count = std::min(kPanel, inner - row);
    panels_.push_back({0, row, count});
    panels_.push_back({up, up_row + row, count});
  }
}

at::ScalarType LinearGroup::type() const {
  const at::ScalarType first = layers_[0]->type();
  const bool one =
      std::all_of(layers_.begin(), layers_.end(), [&](const Linear* l) { return l->type() == first; });
  return one ? first : at::kFloat;  // widening loses nothing
}

Element LinearGroup::element() const {
  return type() == at::kFloat ? Element::kF32 : type() == at::kBFloat16 ? Element::kBF16 : Element::kF16;
}

at::Tensor LinearGroup::part(const at::Tensor& y, size_t layer) const {
  int64_t column = 0;
  for (size_t i = 0; i < layer; ++i) column += panels_of(layers_[i]->weight.size(0)) * kPanel;
  return y.narrow(1, column, layers_[layer]->weight.size(0));
}

at::Tensor LinearGroup::forward(const at::Tensor& x, bool adapted, int32_t activation) const {
  const at::Tensor y = call(x, adapted, activation, std::nullopt);
  if (!gated_) return layers_.size() == 1 ? part(y, 0).contiguous() : y;
  return y.narrow(1, 0, layers_[0]->weight.size(0) / (layers_.size() == 1 ? 2 : 1));
}

at::Tensor LinearGroup::forward_add(const at::Tensor& x, bool adapted, const at::Tensor& residual) const {
  // A width that does not fill its panels is added to afterwards.
  if (residual.size(1) != width()) return forward(x, adapted).add(residual);
  return call(x, adapted, kNoActivation, residual.stride(1) == 1 ? residual : residual.contiguous());
}

at::Tensor LinearGroup::call(const at::Tensor& x, bool adapted, int32_t activation,
                             const OptionalTensor& residual) const {
  const auto weights = this->weights();
  const at::Tensor rows = x.stride(1) == 1 ? x : x.contiguous();
  if (!weights->quant.empty()) {
    const Group group = weights->group(*this);
    const int64_t count = rows.size(0), width = this->width() / (gated_ ? 2 : 1);
    const auto own = adapted ? adapters() : nullptr;
    const LowRank low = adapted ? own->low() : LowRank();
    Finish finish{activation, gated_};
    if (residual) finish.residual = {residual->const_data_ptr<float>(), residual->stride(0)};
    at::Tensor y = at::empty({count, width}, rows.options());
    multiply_group(count, {rows.const_data_ptr<float>(), rows.stride(0)}, group, {{0, count, &low}}, finish,
                   y.mutable_data_ptr<float>(), width);
    return y;
  }
  if (!adapted) {
    return linear_group(rows, weights->w, weights->bias, std::nullopt, std::nullopt, std::nullopt, activation,
                        gated_, residual);
  }
  const auto low = adapters();
  return linear_group(rows, weights->w, weights->bias, low->a, low->b, low->shares, activation, gated_,
                      residual);
}

LinearGroup::Now LinearGroup::now(at::Tensor Linear::*first, at::Tensor Linear::*second) const {
  Now now;
  for (const Linear* layer : layers_) {
    for (const auto part : {first, second}) {
      const at::Tensor& t = layer->*part;
      now.seen.push_back(see(t));
      now.trained = now.trained || (t.defined() && t.requires_grad());
    }
  }
  return now;
}

std::shared_ptr<const LinearGroup::Weights> LinearGroup::weights() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto [seen, trained] = now(&Linear::weight, &Linear::bias);
  if (!trained && weights_ != nullptr && weights_->seen == seen) return weights_;
  weights_.reset();  // frees its memory before there is a second
  if (!trained) return weights_ = find_or_pack(std::move(seen));
  return pack_all(std::move(seen));
}

std::shared_ptr<const LinearGroup::Weights> LinearGroup::find_or_pack(std::vector<Seen> now) const {
  using Key = std::pair<bool, std::vector<const void*>>;
  static std::mutex mutex;
  static auto* const all = new std::map<Key, std::weak_ptr<const Weights>>;
  const std::lock_guard<std::mutex> lock(mutex);
  Key key{gated_, {}};
  for (const Seen& s : now)
    key.second.push_back(s.tensor.defined() ? s.tensor.unsafeGetTensorImpl() : nullptr);
  if (const auto found = all->find(key); found != all->end()) {
    if (auto made = found->second.lock(); made != nullptr && made->seen == now) return made;
  }
  for (auto at = all->begin(); at != all->end();) at = at->second.expired() ? all->erase(at) : std::next(at);
  auto made = pack_all(std::move(now));
  (*all)[key] = made;
  return made;
}

// Layers that are all quantised stay in few bits.
std::shared_ptr<const LinearGroup::Weights> LinearGroup::pack_all(std::vector<Seen> now) const {
  const auto made = std::make_shared<Weights>();
  made->seen = std::move(now);
  made->bias = pack_bias();
  if (!std::all_of(layers_.begin(), layers_.end(), [](const Linear* l) { return l->quantised(); })) {
    made->w = pack_weights();
    return made;
  }
  std::vector<QuantRows> rows;
  for (const auto& [i, row, count] : panels_) {
    const Linear& layer = *layers_[i];
    rows.push_back({layer.quant, layer.weight.const_data_ptr<uint8_t>() + row * layer.weight.size(1), count});
  }
  made->quant = QuantPanels(rows, layers_[0]->in());
  return made;
}

Group LinearGroup::Weights::group(const LinearGroup& of) const {
  Group g;
  g.element = of.element();
  g.in = of.layers()[0]->in();
  g.panels = of.width() / kPanel;
  if (quant.empty()) {
    g.weights = w.const_data_ptr();
  } else {
    g.quant = &quant;
  }
  if (bias) g.bias = bias->const_data_ptr<float>();
  return g;
}

at::Tensor LinearGroup::pack_weights() const {
  std::vector<at::Tensor> dense;
  for (const Linear* layer : layers_) dense.push_back(layer->dense().to(at::kCPU, type()).contiguous());
  Group group;
  group.element = element();
  group.in = dense[0].size(1);
  const auto panels = static_cast<int64_t>(panels_.size());
  const auto memory = std::make_shared<Buffer<char>>(panels * group.panel_bytes());
  parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const auto [layer, row, count] = panels_[static_cast<size_t>(p)];
      const auto* rows = static_cast<const char*>(dense[layer].const_data_ptr());
      pack_panel(group, rows + row * group.in * group.element_size(), count,
                 memory->data() + p * group.panel_bytes());
    }
  });
  return at::from_blob(
      memory->data(), {panels, group.padded_in(), kPanel}, [memory](void*) {}, type());
}

OptionalTensor LinearGroup::pack_bias() const {
  if (std::none_of(layers_.begin(), layers_.end(), [](const Linear* l) { return l->bias.defined(); }))
    return {};
  at::Tensor bias = at::zeros({width()}, at::kFloat);
  auto* to = bias.mutable_data_ptr<float>();
  for (const auto& [layer, row, count] : panels_) {
    const at::Tensor& from = layers_[layer]->bias;
    if (from.defined())
      std::copy_n(from.detach().cpu().contiguous().const_data_ptr<float>() + row, count, to);
    to += kPanel;
  }
  return bias;
}

std::shared_ptr<const LinearGroup::OwnAdapters> LinearGroup::adapters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto [seen, trained] = now(&Linear::a, &Linear::b);
  if (trained || adapters_ == nullptr || adapters_->seen != seen) {
    adapters_ = std::make_shared<OwnAdapters>(OwnAdapters{pack_adapters(layers_), std::move(seen)});
  }
  return adapters_;
}

LowRank LinearGroup::Adapters::low() const {
  if (!a) return {};
  return {a->size(0) * kPanel, a->const_data_ptr<float>(),
          static_cast<const LowRank::Share*>(shares->const_data_ptr()), b->const_data_ptr<float>()};
}

LinearGroup::Adapters LinearGroup::pack_adapters(const std::vector<const Linear*>& layers) const {
  const int64_t in = layers_[0]->in(), panels = static_cast<int64_t>(panels_.size());
  std::vector<int64_t> column;
  std::vector<at::Tensor> bs;
  int64_t columns = 0, b_size = 0;
  for (const Linear* layer : layers) {
    column.push_back(columns);
    bs.push_back(layer->b.defined() ? layer->b.detach().to(at::kCPU, at::kFloat).contiguous() : layer->b);
    if (layer->a.defined()) columns += layer->a.size(0);
  }
  if (columns == 0) return {};
  // All A as one matrix, whose rows the panels' columns are.
  at::Tensor all = at::empty({columns, in}, at::kFloat),
             a = at::empty({panels_of(columns), in, kPanel}, at::kFloat);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i]->a.defined()) all.narrow(0, column[i], layers[i]->a.size(0)).copy_(layers[i]->a.detach());
  }
  pack('T', in, columns, {all.const_data_ptr<float>(), in}, a.mutable_data_ptr<float>());
  at::Tensor shares = at::zeros({panels, 3}, at::kLong);
  auto* share = static_cast<LowRank::Share*>(shares.mutable_data_ptr());
  for (int64_t p = 0; p < panels; ++p) {
    const size_t i = panels_[static_cast<size_t>(p)].layer;
    if (!layers[i]->a.defined()) continue;
    share[p] = {column[i], layers[i]->a.size(0), b_size};
    b_size += share[p].rank * kPanel;
  }
  at::Tensor b = at::empty({b_size}, at::kFloat);
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t rank = share[p].rank;
    if (rank == 0) continue;
    const auto [i, row, count] = panels_[static_cast<size_t>(p)];
    pack('T', rank, count, {bs[i].const_data_ptr<float>() + row * rank, rank},
         b.mutable_data_ptr<float>() + share[p].offset, static_cast<float>(layers[i]->scale));
  }
  return {a, b, shares};
}

}  // namespace rlt::nn
