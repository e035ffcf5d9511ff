// Mixtures of experts (Shazeer 2017): tokens sorted by their experts, one product for each.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>

#include "nn/block.h"
#include "ops/block.h"
#include "ops/packed.h"

namespace rlt::nn {
namespace {

// The choices of all tokens, sorted by expert: rows [N·k] are their tokens, place [N·k] says where each
// token's choices have come.
struct Deal {
  Deal(const at::Tensor& chosen, int64_t experts) : counts(static_cast<size_t>(experts)) {
    const int64_t n = chosen.numel(), each = chosen.size(1);
    const at::Tensor dense = chosen.contiguous();
    const int64_t* const expert = dense.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < n; ++i) ++counts[static_cast<size_t>(expert[i])];
    std::vector<int64_t> next(counts.size());
    for (size_t e = 1; e < next.size(); ++e) next[e] = next[e - 1] + counts[e - 1];
    rows = at::empty({n}, at::kLong);
    place = at::empty({n}, at::kLong);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t to = next[static_cast<size_t>(expert[i])]++;
      rows.mutable_data_ptr<int64_t>()[to] = i / each;
      place.mutable_data_ptr<int64_t>()[i] = to;
    }
  }

  std::vector<int64_t> counts;  // of each expert
  at::Tensor rows, place;
};

at::Tensor gate(const Config& c, const at::Tensor& gate, const at::Tensor& up) {
  if (c.expert_limit == 0) return gated_act(gate, up, c.activation);
  const at::Tensor grown = gate.clamp_max(c.expert_limit).mul(c.expert_alpha);
  return gated_act(grown, up.clamp(-c.expert_limit, c.expert_limit).add(1), RLT_ACT_SILU)
      .mul(1 / c.expert_alpha);
}

at::Tensor pass_through(const Config& c, const Mlp& mlp, const MlpGroups* groups, const at::Tensor& x) {
  if (groups != nullptr) {
    const at::Tensor wide = groups->up.forward(x, false);
    return groups->down.forward(gate(c, groups->up.part(wide, 0), groups->up.part(wide, 1)), false);
  }
  const auto wide = forward_all({&mlp.gate, &mlp.up}, x, {});
  return mlp.down.forward(gate(c, wide[0], wide[1]), {});
}

}  // namespace

at::Tensor mix_experts(const Config& c, const Block& block, const Groups* groups, const at::Tensor& x,
                       at::Tensor* load) {
  const at::Tensor probabilities = at::softmax(block.router.forward(x, {}), 1);
  auto [weights, chosen] = at::topk(probabilities, c.experts_per_token, 1);
  if (c.router_norm) weights = weights.div(weights.sum(1, true));
  const Deal deal(chosen, c.experts);
  if (load != nullptr) {
    const at::Tensor counts = at::tensor(deal.counts, at::kFloat);
    *load = load->add(at::stack({probabilities.sum(0), counts}));
  }
  const auto sorted = select_rows(x, deal.rows).split_with_sizes(deal.counts, 0);
  std::vector<at::Tensor> made;
  for (size_t e = 0; e < sorted.size(); ++e) {
    if (deal.counts[e] == 0) continue;  // without a gradient, so optimisers leave it as it is
    made.push_back(
        pass_through(c, block.experts[e], groups == nullptr ? nullptr : &groups->experts[e], sorted[e]));
  }
  const at::Tensor mixed = select_rows(at::cat(made), deal.place);
  return mixed.view({x.size(0), c.experts_per_token, x.size(1)}).mul(weights.unsqueeze(2)).sum(1);
}

}  // namespace rlt::nn
