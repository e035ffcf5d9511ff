// Whether an adapter's model is on the weights of an engine's.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "nn/block.h"

namespace rlt::engine {

// A block's groups.
inline std::array<const nn::LinearGroup*, 8> groups_of(const nn::Groups& g) {
  return {&g.qkv, &g.o, &g.up, &g.down, &g.input_gate, &g.input_proj, &g.laurel_left, &g.laurel_right};
}

inline void check_shares_weights(const nn::Transformer& ours, const nn::Transformer& theirs) {
  bool same = ours.blocks().size() == theirs.blocks().size();
  for (size_t i = 0; same && i < ours.blocks().size(); ++i) {
    const auto a = groups_of(ours.groups(i)), b = groups_of(theirs.groups(i));
    for (size_t j = 0; j < a.size(); ++j) {
      same = same && std::equal(a[j]->layers().begin(), a[j]->layers().end(), b[j]->layers().begin(),
                                b[j]->layers().end(), [](const nn::Linear* x, const nn::Linear* y) {
                                  return x->weight.const_data_ptr() == y->weight.const_data_ptr();
                                });
    }
  }
  TORCH_CHECK(same, "the adapter's model does not share the weights of the engine's");
}

}  // namespace rlt::engine
