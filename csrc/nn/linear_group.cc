#include "nn/linear_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <map>

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
  if (!layers_[0]->weight.defined()) layers_.clear();
  if (layers_.empty()) return;
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
  const auto own = adapted ? adapters() : nullptr;
  const Group& group = weights->group;
  TORCH_CHECK(x.dim() == 2 && x.size(1) == group.in && x.scalar_type() == at::kFloat, "linear group: x ",
              x.scalar_type(), " ", x.sizes(), ", want float32 rows of ", group.in);
  const at::Tensor rows = x.stride(1) == 1 ? x : x.contiguous();
  const int64_t count = rows.size(0), width = this->width() / (gated_ ? 2 : 1);
  std::vector<AdaptedRows> low;
  if (own != nullptr) low.push_back({0, count, &own->packed.low});
  Finish finish{activation, gated_};
  if (residual) finish.residual = {residual->const_data_ptr<float>(), residual->stride(0)};
  at::Tensor y = at::empty({count, width}, rows.options());
  multiply_group(count, {rows.const_data_ptr<float>(), rows.stride(0)}, group, low, finish,
                 y.mutable_data_ptr<float>(), width);
  return y;
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
  Group& group = made->group;
  group.element = element();
  group.in = layers_[0]->in();
  group.panels = static_cast<int64_t>(panels_.size());
  if (std::any_of(layers_.begin(), layers_.end(), [](const Linear* l) { return l->bias.defined(); })) {
    for (const auto& [layer, row, count] : panels_) {
      const at::Tensor& bias = layers_[layer]->bias;
      made->bias.resize(made->bias.size() + kPanel);
      if (!bias.defined()) continue;
      const at::Tensor dense = bias.detach().cpu().contiguous();
      std::copy_n(dense.const_data_ptr<float>() + row, count, made->bias.end() - kPanel);
    }
    group.bias = made->bias.data();
  }
  if (!std::all_of(layers_.begin(), layers_.end(), [](const Linear* l) { return l->quantised(); })) {
    pack_dense(*made);
    return made;
  }
  std::vector<QuantRows> rows;
  for (const auto& [i, row, count] : panels_) {
    const Linear& layer = *layers_[i];
    rows.push_back({layer.quant, layer.weight.const_data_ptr<uint8_t>() + row * layer.weight.size(1), count});
  }
  made->quant = QuantPanels(rows, group.in, group.element == Element::kBF16);
  group.quant = &made->quant;
  return made;
}

void LinearGroup::pack_dense(Weights& to) const {
  std::vector<at::Tensor> dense;
  for (const Linear* layer : layers_) dense.push_back(layer->dense().to(at::kCPU, type()).contiguous());
  Group& group = to.group;
  to.panels = WeightMemory(group.panels * group.panel_bytes());
  group.weights = to.panels.data();
  parallel_for(0, group.panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const auto [layer, row, count] = panels_[static_cast<size_t>(p)];
      const auto* rows = static_cast<const char*>(dense[layer].const_data_ptr());
      pack_panel(group, rows + row * group.in * group.element_size(), count,
                 to.panels.data() + p * group.panel_bytes());
    }
  });
}

std::shared_ptr<const LinearGroup::OwnAdapters> LinearGroup::adapters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto [seen, trained] = now(&Linear::a, &Linear::b);
  if (trained || adapters_ == nullptr || adapters_->seen != seen) {
    adapters_ = std::make_shared<OwnAdapters>(OwnAdapters{pack_adapters(layers_), std::move(seen)});
  }
  return adapters_;
}

LinearGroup::Adapters LinearGroup::pack_adapters(const std::vector<const Linear*>& layers) const {
  const auto dense = [](const at::Tensor& t) { return t.detach().to(at::kCPU, at::kFloat).contiguous(); };
  const int64_t in = layers_[0]->in();
  std::vector<int64_t> column;
  std::vector<at::Tensor> as, bs;
  int64_t columns = 0;
  for (const Linear* layer : layers) {
    const bool adapted = layer->a.defined();
    TORCH_CHECK(!layer->magnitude.defined(), "an engine takes no magnitudes of DoRA");
    column.push_back(columns);
    bs.push_back(adapted ? dense(layer->b) : at::Tensor());
    if (!adapted) continue;
    as.push_back(dense(layer->a));
    columns += layer->a.size(0);
  }
  Adapters made;
  if (columns == 0) return made;
  // All A as one matrix, whose rows the panels' columns are.
  const at::Tensor all = at::cat(as);
  made.a = Buffer<float>(packed_size(in, columns));
  pack('T', in, columns, {all.const_data_ptr<float>(), in}, made.a.data());
  int64_t b_size = 0;
  for (const Panel& panel : panels_) {
    const int64_t rank = bs[panel.layer].defined() ? bs[panel.layer].size(1) : 0;
    made.shares.push_back({column[panel.layer], rank, b_size});
    b_size += rank * kPanel;
  }
  made.b = Buffer<float>(b_size);
  for (size_t p = 0; p < panels_.size(); ++p) {
    const auto [i, row, count] = panels_[p];
    const auto [first, rank, offset] = made.shares[p];
    if (rank == 0) continue;
    pack('T', rank, count, {bs[i].const_data_ptr<float>() + row * rank, rank}, made.b.data() + offset,
         static_cast<float>(layers[i]->scale));
  }
  made.low = {panels_of(columns) * kPanel, made.a.data(), made.shares.data(), made.b.data()};
  return made;
}

}  // namespace rlt::nn
