#include "engine/cpu/packed.h"

namespace rlt::engine {

void PackedLinear::refresh() {
  weights_.reset();  // frees what is of no use any more before there is more
  weights_ = group_->weights();
  set_adapter(1, group_->layers());
}

void PackedLinear::set_adapter(int32_t number, const std::vector<const nn::Linear*>& layers) {
  const auto i = static_cast<size_t>(number - 1);
  if (adapters_.size() <= i) adapters_.resize(i + 1);
  adapters_[i] = {};
  if (!layers.empty()) adapters_[i] = group_->pack_adapters(layers);
}

void PackedLinear::multiply(const Rows& x, const Finish& finish, float* y, int64_t y_stride) const {
  std::vector<AdaptedRows> adapted;
  if (x.adapted != nullptr) {
    for (const auto& [begin, end, number] : *x.adapted) {
      adapted.push_back({begin, end, &adapters_[static_cast<size_t>(number - 1)].low});
    }
  }
  multiply_group(x.count, {x.data, x.stride}, weights_->group, adapted, finish, y, y_stride);
}

}  // namespace rlt::engine
