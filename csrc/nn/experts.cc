// Mixtures of experts (Shazeer 2017): tokens sorted by their experts, one product for each.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <optional>

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

// A of each expert [r, in], and B [out, r].
struct Split {
  explicit Split(const Adapter& all, int64_t experts) : scale(all.scale) {
    if (!all.a.defined()) return;
    a = all.a.reshape({experts, -1, all.a.size(1)}).unbind(0);
    b = all.b.reshape({all.b.size(0), -1, experts}).unbind(2);
  }
  at::Tensor add_to(const at::Tensor& y, const at::Tensor& x, size_t expert, const at::Tensor& rows) const {
    return y.add(x.matmul(a[expert].t()).matmul(rows.t()), scale);
  }

  std::vector<at::Tensor> a, b;
  double scale;
};

struct Loras {
  Loras(const Config& c, const ExpertLora& lora)
      : woven(c.woven_experts != 0), up(lora.up, c.experts), down(lora.down, c.experts) {}

  // Of gate, then up.
  at::Tensor rows(size_t expert, int64_t part) const {
    const at::Tensor& all = up.b[expert];
    return woven ? all.slice(0, part, all.size(0), 2) : all.chunk(2, 0)[static_cast<size_t>(part)];
  }

  bool woven;
  Split up, down;
};

at::Tensor pass_through(const Config& c, const Mlp& mlp, const MlpGroups* groups, const Loras* loras,
                        size_t expert, const at::Tensor& x) {
  std::vector<at::Tensor> wide;
  if (groups != nullptr) {
    const at::Tensor both = groups->up.forward(x, false);
    wide = {groups->up.part(both, 0), groups->up.part(both, 1)};
  } else {
    wide = forward_all({&mlp.gate, &mlp.up}, x, {});
  }
  if (loras != nullptr && !loras->up.a.empty()) {
    for (size_t i = 0; i < 2; ++i)
      wide[i] = loras->up.add_to(wide[i], x, expert, loras->rows(expert, static_cast<int64_t>(i)));
  }
  const at::Tensor inner = gate(c, wide[0], wide[1]);
  const at::Tensor y = groups != nullptr ? groups->down.forward(inner, false) : mlp.down.forward(inner, {});
  if (loras == nullptr || loras->down.a.empty()) return y;
  return loras->down.add_to(y, inner, expert, loras->down.b[expert]);
}

}  // namespace

std::vector<Mlp> adapted_experts(const Config& c, const Block& block) {
  if (!block.lora.up.a.defined() && !block.lora.down.a.defined()) return block.experts;
  const Loras loras(c, block.lora);
  std::vector<Mlp> experts = block.experts;
  const auto put = [](Linear& layer, const Split& from, size_t expert, const at::Tensor& b) {
    layer.a = from.a[expert];
    layer.b = b;
    layer.scale = from.scale;
  };
  for (size_t e = 0; e < experts.size(); ++e) {
    if (!loras.up.a.empty()) {
      put(experts[e].gate, loras.up, e, loras.rows(e, 0));
      put(experts[e].up, loras.up, e, loras.rows(e, 1));
    }
    if (!loras.down.a.empty()) put(experts[e].down, loras.down, e, loras.down.b[e]);
  }
  return experts;
}

at::Tensor mix_experts(const Config& c, const Block& block, const Groups* groups, const at::Tensor& x,
                       const Routing& routing) {
  const bool beside = block.experts_norm.weight.defined();
  const at::Tensor judged =
      beside ? apply_norm(c, block.router_norm, x).mul(1 / std::sqrt(static_cast<double>(x.size(1)))) : x;
  const at::Tensor logits = block.router.forward(judged, {});
  const at::Tensor probabilities = c.router_sigmoid ? at::sigmoid(logits) : at::softmax(logits, 1);
  const at::Tensor ranked =
      block.router_bias.defined() ? probabilities.add(block.router_bias) : probabilities;
  at::Tensor chosen = std::get<1>(at::topk(ranked.detach(), c.experts_per_token, 1));
  if (routing.given.defined()) {
    chosen = at::where(routing.given.slice(1, 0, 1).ge(0), routing.given.to(at::kLong), chosen);
  }
  at::Tensor weights = probabilities.gather(1, chosen);
  if (c.router_norm) weights = weights.div(weights.sum(1, true).add(c.router_sigmoid ? 1e-6 : 0));
  if (beside) weights = weights.mul(block.expert_scale.take(chosen));
  if (c.router_scale != 0) weights = weights.mul(c.router_scale);
  const Deal deal(chosen, c.experts);
  if (routing.load != nullptr) {
    const at::Tensor counts = at::tensor(deal.counts, at::kFloat);
    *routing.load = routing.load->add(at::stack({probabilities.sum(0), counts}));
  }
  std::optional<Loras> loras;
  if (routing.lora != nullptr) loras.emplace(c, *routing.lora);
  const auto sorted =
      select_rows(apply_norm(c, block.experts_norm, x), deal.rows).split_with_sizes(deal.counts, 0);
  std::vector<at::Tensor> made;
  for (size_t e = 0; e < sorted.size(); ++e) {
    const bool met = deal.counts[e] > 0;
    // The gradient of one that no token meets is 0 where it is wanted.
    if (!met && !(at::GradMode::is_enabled() && block.experts[e].up.weight.requires_grad())) continue;
    const at::Tensor y =
        pass_through(c, block.experts[e], groups == nullptr ? nullptr : &groups->experts[e],
                     loras ? &*loras : nullptr, e, met ? sorted[e] : x.new_zeros({1, x.size(1)}));
    made.push_back(met ? y : y.slice(0, 0, 0));
  }
  const at::Tensor mixed = select_rows(at::cat(made), deal.place);
  const at::Tensor sum =
      mixed.view({x.size(0), c.experts_per_token, x.size(1)}).mul(weights.unsqueeze(2)).sum(1);
  return apply_norm(c, block.post_experts_norm, sum);
}

}  // namespace rlt::nn
