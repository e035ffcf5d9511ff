#include "nn/block.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/std_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "nn/activate.h"
#include "nn/distance.h"
#include "nn/streams.h"
#include "ops/block.h"
#include "ops/packed.h"
#include "ops/sinks.h"

namespace rlt::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Heads {
  at::Tensor q, k, v;  // [N, heads·d], [N, kv_heads·d] twice
  at::Tensor gate;     // as q, undefined without gated_queries
};

at::Tensor wanted(const BlockPass& pass, const at::Tensor& x) {
  return pass.rows.defined() ? select_rows(x, pass.rows) : x;
}

std::vector<const Linear*> qkv_layers(const Block& b) {
  if (b.a_log.defined()) return {&b.qkv, &b.z, &b.rate, &b.decay};
  if (b.qkv.weight.defined()) return {&b.qkv};
  if (!b.k.weight.defined()) return {&b.q};
  if (!b.v.weight.defined()) return {&b.q, &b.k};
  return {&b.q, &b.k, &b.v};
}

std::vector<const Linear*> up_layers(const Mlp& m) {
  if (m.gate_up.weight.defined()) return {&m.gate_up};
  if (!m.gate.weight.defined()) return {&m.up};
  return {&m.gate, &m.up};
}

// The outputs of layers of the same input, by the pass's way to multiply.
std::vector<at::Tensor> outputs(const BlockPass& pass, LinearGroup Groups::*group,
                                JoinedLinear Joints::*joint, const std::vector<const Linear*>& layers,
                                const at::Tensor& x, const AdapterPass& adapter) {
  if (pass.joints != nullptr) return (pass.joints.get()->*joint).forward(x, adapter.on);
  if (pass.groups == nullptr) return forward_all(layers, x, adapter);
  const LinearGroup& together = pass.groups->*group;
  const at::Tensor all = together.forward(x, adapter.on);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < layers.size(); ++i)
    parts.push_back(layers.size() == 1 ? all : together.part(all, i));
  return parts;
}

Heads project(const Block& block, const BlockPass& pass, const at::Tensor& x) {
  const Config& c = *pass.config;
  const auto found = outputs(pass, &Groups::qkv, &Joints::qkv, qkv_layers(block), x, pass.adapter);
  const at::Tensor& all = found[0];
  if (c.gated_queries) {
    const auto both = all.view({all.size(0), c.heads, 2, c.head_dim}).unbind(2);
    const auto flat = [&](const at::Tensor& t) { return t.reshape({all.size(0), c.heads * c.head_dim}); };
    return {flat(both[0]), found[1], found[2], flat(both[1])};
  }
  if (found.size() == 1 && c.qkv == RLT_QKV_SPLIT) return {all, {}, {}, {}};
  if (c.qkv == RLT_QKV_SPLIT) return {all, found[1], found.back(), {}};
  if (c.qkv == RLT_QKV_FUSED) {
    const int64_t queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim;
    const auto parts = all.split_with_sizes({queries, keys, keys}, 1);
    return {parts[0], parts[1], parts[2], {}};
  }
  const auto parts = all.view({all.size(0), c.heads, 3, c.head_dim}).unbind(2);
  const auto flat = [&](const at::Tensor& t) { return t.reshape({all.size(0), c.heads * c.head_dim}); };
  return {flat(parts[0]), flat(parts[1]), flat(parts[2]), {}};
}

// Of each head, or of all together; x itself without a norm.
at::Tensor norm_heads(const Config& c, const Norm& norm, const at::Tensor& x) {
  if (!norm.weight.defined()) return x;
  return apply_norm(c, norm, x.reshape({-1, norm.weight.size(0)})).view(x.sizes());
}

// Norms and rotation of q or k.
at::Tensor place(const Block& block, const BlockPass& pass, const Norm& norm, const at::Tensor& x) {
  const Config& c = *pass.config;
  at::Tensor y = norm_heads(c, norm, x);
  if (c.rope_pairs) y = pairs_to_halves(c, y);
  return c.rotary_dim > 0 ? rope(y, pass.rotation.cos, pass.rotation.sin, block.head_dim, false) : y;
}

// What leads back into the sum: residual plus layer(x) through its norm, without residual where that is
// undefined.
at::Tensor close(const BlockPass& pass, const Linear& layer, LinearGroup Groups::*group,
                 JoinedLinear Joints::*joint, const Norm& norm, const at::Tensor& x,
                 const at::Tensor& residual) {
  const Config& c = *pass.config;
  if (pass.groups != nullptr && residual.defined() && !norm.weight.defined()) {
    return (pass.groups->*group).forward_add(x, pass.wanted.on, residual);
  }
  const at::Tensor y = apply_norm(c, norm, outputs(pass, group, joint, {&layer}, x, pass.wanted)[0]);
  return residual.defined() ? residual.add(y) : y;
}

at::Tensor attend(const Block& block, const BlockPass& pass, const at::Tensor& x, const at::Tensor& residual,
                  Aside& aside) {
  const Config& c = *pass.config;
  if (block.conv.defined()) {
    const auto wide = outputs(pass, &Groups::qkv, &Joints::qkv, qkv_layers(block), x, pass.adapter);
    const at::Tensor all =
        block.a_log.defined() ? delta_rule(block, pass, wide) : convolve(block, pass, wide[0]);
    const at::Tensor mixed = wanted(pass, all);
    return close(pass, block.o, &Groups::o, &Joints::o, block.post_attn_norm, mixed, residual);
  }
  const Heads heads = project(block, pass, x);
  if (c.distance != RLT_DISTANCE_NONE) {
    const at::Tensor mixed = distance_attention(block, pass, norm_heads(c, block.q_norm, heads.q),
                                                norm_heads(c, block.k_norm, heads.k), heads.v);
    return close(pass, block.o, &Groups::o, &Joints::o, block.post_attn_norm, wanted(pass, mixed), residual);
  }
  at::Tensor q = place(block, pass, block.q_norm, heads.q), k = pass.keys, v = pass.values;
  if (pass.query_factor.defined()) q = q.mul(pass.query_factor);
  if (!k.defined()) {
    k = place(block, pass, block.k_norm, heads.k);
    v = norm_heads(c, block.v_norm, heads.v);
  }
  if (block.lends) {
    aside.keys = k;
    aside.values = v;
  }
  const at::ScalarType type = (c.qkv == RLT_QKV_SPLIT ? block.q : block.qkv).type();
  at::Tensor mixed = block.sinks.defined()
                         ? sink_attention(q, k, v, pass.cu_seqlens, c.heads, c.attention_scale, pass.window,
                                          pass.continues, type, block.sinks)
                         : std::get<0>(varlen_attention(q, k, v, pass.cu_seqlens, c.heads, c.attention_scale,
                                                        c.bidirectional == 0, pass.window,
                                                        c.attention_softcap, pass.continues, type));
  if (heads.gate.defined()) mixed = mixed.mul(heads.gate.sigmoid());
  return close(pass, block.o, &Groups::o, &Joints::o, block.post_attn_norm, wanted(pass, mixed), residual);
}

at::Tensor widen(const Block& block, const BlockPass& pass, const at::Tensor& x) {
  const Config& c = *pass.config;
  if (pass.groups != nullptr && !block.cutoff && !block.up_first)
    return pass.groups->up.forward(x, pass.wanted.on, c.activation);
  auto parts = outputs(pass, &Groups::up, &Joints::up, up_layers(block), x, pass.wanted);
  if (!c.gated) return activate(c.activation, parts[0]);
  if (c.fused_gate_up) parts = parts[0].chunk(2, 1);
  if (block.up_first) std::swap(parts[0], parts[1]);
  if (block.cutoff) parts[0] = keep_top(parts[0], *block.cutoff);
  return gated_act(parts[0], parts[1], c.activation);
}

at::Tensor mlp(const Block& block, const BlockPass& pass, const at::Tensor& x, const at::Tensor& residual,
               Aside& aside) {
  at::Tensor sum = residual;
  if (!block.experts.empty()) {
    Routing routing{pass.adapter.on ? &block.lora : nullptr, pass.routes, pass.loads ? &aside.load : nullptr};
    if (pass.routes.defined() && pass.rows.defined()) routing.given = pass.routes.index_select(0, pass.rows);
    const Config& c = *pass.config;
    if (block.experts_norm.weight.defined()) {
      const at::Tensor mixed = mix_experts(c, block, pass.groups, residual, routing);
      const at::Tensor both = close(pass, block.down, &Groups::down, &Joints::down, block.post_shared_norm,
                                    widen(block, pass, x), mixed);
      return residual.add(apply_norm(c, block.post_mlp_norm, both));
    }
    sum = residual.add(mix_experts(c, block, pass.groups, x, routing));
    if (!block.down.weight.defined()) return sum;
  }
  at::Tensor inner = widen(block, pass, x);
  if (block.shared_gate.weight.defined()) inner = inner.mul(block.shared_gate.forward(x, {}).sigmoid());
  return close(pass, block.down, &Groups::down, &Joints::down, block.post_mlp_norm, inner, sum);
}

// Half of the squares of middle and of x with a low-rank map of itself; middle where there is none.
at::Tensor add_laurel(const Block& block, const BlockPass& pass, const at::Tensor& x,
                      const at::Tensor& middle) {
  if (!block.laurel_left.weight.defined()) return middle;
  const at::Tensor low =
      outputs(pass, &Groups::laurel_left, &Joints::laurel_left, {&block.laurel_left}, x, pass.wanted)[0];
  return close(pass, block.laurel_right, &Groups::laurel_right, &Joints::laurel_right, block.post_laurel_norm,
               low, x)
      .add(middle)
      .mul(std::sqrt(0.5));
}

// What the token's own input to the block makes of x, and residual where that is defined.
at::Tensor add_input(const Block& block, const BlockPass& pass, const at::Tensor& x,
                     const at::Tensor& residual) {
  if (!block.input_gate.weight.defined()) return residual;
  const int32_t activation = pass.config->activation;
  at::Tensor gate;
  if (pass.groups != nullptr) {
    gate = pass.groups->input_gate.forward(x, pass.wanted.on, activation);
  } else {
    gate = activate(activation, outputs(pass, &Groups::input_gate, &Joints::input_gate, {&block.input_gate},
                                        x, pass.wanted)[0]);
  }
  return close(pass, block.input_proj, &Groups::input_proj, &Joints::input_proj, block.post_input_norm,
               gate.mul(wanted(pass, pass.input)), residual);
}

constexpr Linear Block::*kLinears[] = {&Block::q,
                                       &Block::k,
                                       &Block::v,
                                       &Block::qkv,
                                       &Block::o,
                                       &Block::router,
                                       &Block::shared_gate,
                                       &Block::z,
                                       &Block::rate,
                                       &Block::decay,
                                       &Block::input_gate,
                                       &Block::input_proj,
                                       &Block::laurel_left,
                                       &Block::laurel_right,
                                       &Block::streams_router,
                                       &Block::predict,
                                       &Block::correct};
constexpr Linear Mlp::*kMlpLinears[] = {&Mlp::gate, &Mlp::up, &Mlp::gate_up, &Mlp::down};

// The tensors of a block whose gradients are asked for.
std::vector<at::Tensor> parameters(const Block& block, bool adapted) {
  std::vector<at::Tensor> found;
  const auto add = [&](const at::Tensor& t) {
    if (t.defined() && t.requires_grad()) found.push_back(t);
  };
  for (const at::Tensor* t : {&block.sinks, &block.conv, &block.conv_bias, &block.a_log, &block.dt_bias,
                              &block.delta_norm, &block.streams_scale, &block.expert_scale})
    add(*t);
  for (const Norm* norm :
       {&block.attn_norm, &block.sum_norm, &block.q_norm, &block.k_norm, &block.post_attn_norm,
        &block.mlp_norm, &block.post_mlp_norm, &block.post_input_norm, &block.post_laurel_norm,
        &block.streams_norm, &block.router_norm, &block.experts_norm, &block.post_experts_norm,
        &block.post_shared_norm}) {
    add(norm->weight);
    add(norm->bias);
  }
  const auto add_linear = [&](const Linear& layer) {
    add(layer.weight);
    add(layer.bias);
    if (adapted) {
      add(layer.a);
      add(layer.b);
      add(layer.magnitude);
    }
  };
  for (Linear Block::*const member : kLinears) add_linear(block.*member);
  for (Linear Mlp::*const member : kMlpLinears) add_linear(block.*member);
  for (const Mlp& expert : block.experts) {
    for (Linear Mlp::*const member : kMlpLinears) add_linear(expert.*member);
  }
  for (const Adapter* const adapter : {&block.lora.up, &block.lora.down}) {
    if (!adapted) break;
    add(adapter->a);
    add(adapter->b);
  }
  return found;
}

// A block and its pass, for as long as backward may come. Copies share the tensors.
struct Recipe : torch::CustomClassHolder {
  Recipe(const Block& b, const BlockPass& p, std::vector<at::Tensor> ps)
      : block(b), pass(p), params(std::move(ps)) {
    for (const at::Tensor& t : params) versions.push_back(t._version());
  }

  void check_versions() const {
    for (size_t i = 0; i < params.size(); ++i) {
      TORCH_CHECK(params[i]._version() == versions[i], "a parameter ", params[i].sizes(),
                  " of a checkpointed block changed after its forward pass: call backward before the "
                  "optimizer's step");
    }
  }

  Block block;
  BlockPass pass;
  std::vector<at::Tensor> params;
  std::vector<int64_t> versions;
};

// What a pass has that other blocks, or the embeddings, have made.
constexpr at::Tensor BlockPass::*kGiven[] = {&BlockPass::distances, &BlockPass::input, &BlockPass::keys,
                                             &BlockPass::values};

bool given(const BlockPass& pass, at::Tensor BlockPass::*member) {
  return (pass.*member).defined() && (pass.*member).requires_grad();
}

// block_forward's result, and what there is of Aside.
variable_list cook(const Block& block, const BlockPass& pass, const at::Tensor& x) {
  Aside aside;
  if (pass.loads) aside.load = at::zeros({2, pass.config->experts});
  variable_list made{block_forward(block, pass, x, aside)};
  for (const at::Tensor& t : {aside.load, aside.keys, aside.values}) {
    if (t.defined()) made.push_back(t);
  }
  return made;
}

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList /*params*/,
                               const c10::intrusive_ptr<Recipe>& recipe) {
    const at::AutoGradMode no_grad(false);
    ctx->save_for_backward({x});
    ctx->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    ctx->saved_data["needs_x"] = x.requires_grad();
    return cook(recipe->block, recipe->pass, x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto recipe = c10::static_intrusive_pointer_cast<Recipe>(ctx->saved_data["recipe"].toCapsule());
    recipe->check_versions();
    const bool needs_x = ctx->saved_data["needs_x"].toBool();
    const at::AutoGradMode grad(true);
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_(needs_x);
    variable_list wanted = recipe->params;
    BlockPass pass = recipe->pass;  // whose tensors are cut from what made them, as x is
    for (at::Tensor BlockPass::*const member : kGiven) {
      if (!given(pass, member)) continue;
      pass.*member = (pass.*member).detach().requires_grad_();
      wanted.push_back(pass.*member);
    }
    if (needs_x) wanted.push_back(x);
    variable_list found = torch::autograd::grad(cook(recipe->block, pass, x), wanted, grads, std::nullopt,
                                                /*create_graph=*/false, /*allow_unused=*/true);
    Variable grad_x;
    if (needs_x) {
      grad_x = found.back();
      found.pop_back();
    }
    found.insert(found.begin(), grad_x);
    found.emplace_back();  // of the recipe
    return found;
  }
};

}  // namespace

MlpGroups::MlpGroups(const Mlp& m, bool gated) : up(up_layers(m), gated), down({&m.down}) {}

Groups::Groups(const Config& c, const Block& b)
    : MlpGroups(b, c.gated && !b.cutoff && !b.up_first),
      qkv(qkv_layers(b)),
      o({&b.o}),
      input_gate({&b.input_gate}),
      input_proj({&b.input_proj}),
      laurel_left({&b.laurel_left}),
      laurel_right({&b.laurel_right}),
      router({&b.router}) {
  for (const Mlp& expert : b.experts) experts.emplace_back(expert, false);
}

Joints::Joints(const Groups& g)
    : qkv(g.qkv.layers()),
      o(g.o.layers()),
      up(g.up.layers()),
      down(g.down.layers()),
      input_gate(g.input_gate.layers()),
      input_proj(g.input_proj.layers()),
      laurel_left(g.laurel_left.layers()),
      laurel_right(g.laurel_right.layers()) {}

std::array<const JoinedLinear*, 8> Joints::all() const {
  return {&qkv, &o, &up, &down, &input_gate, &input_proj, &laurel_left, &laurel_right};
}

bool Joints::fit() const {
  const auto layers = all();
  return std::all_of(layers.begin(), layers.end(), [](const JoinedLinear* layer) { return layer->fits(); });
}

bool trained(const Block& block) { return !parameters(block, true).empty(); }

at::Tensor apply_norm(const Config& c, const Norm& norm, const at::Tensor& x) {
  if (!norm.weight.defined()) return x;
  if (c.norm == RLT_NORM_LAYER) return at::layer_norm(x, {x.size(1)}, norm.weight, norm.bias, c.norm_eps);
  return std::get<0>(rms_norm(x, norm.weight, c.norm_eps, c.norm == RLT_NORM_RMS_PLUS_ONE));
}

at::Tensor norm_of_sum(const Config& c, const Norm& norm, const at::Tensor& x, const at::Tensor& y) {
  const bool trained = norm.weight.requires_grad() || (norm.bias.defined() && norm.bias.requires_grad());
  if (c.norm != RLT_NORM_LAYER || !norm.bias.defined() || trained) return apply_norm(c, norm, x.add(y));
  return std::get<0>(add_layer_norm(x, y, norm.weight, norm.bias, c.norm_eps));
}

at::Tensor keep_top(const at::Tensor& x, double cutoff) {
  const auto [deviation, mean] = at::std_mean(x, 1, /*unbiased=*/false, /*keepdim=*/true);
  return at::relu(x.sub(mean.add(deviation, cutoff)));
}

namespace {

// x [N, H] plus what attention and MLP make of it.
at::Tensor sum_layers(const Block& block, const BlockPass& pass, const at::Tensor& x, Aside& aside) {
  const Config& c = *pass.config;
  if (c.norm_after) {
    const at::Tensor mixed = attend(block, pass, x, {}, aside);
    at::Tensor middle = norm_of_sum(c, block.attn_norm, mixed, wanted(pass, x));
    if (block.sum_norm.weight.defined()) middle = norm_of_sum(c, block.sum_norm, middle, wanted(pass, x));
    return norm_of_sum(c, block.mlp_norm, mlp(block, pass, middle, {}, aside), middle);
  }
  const at::Tensor normed = apply_norm(c, block.attn_norm, x);
  at::Tensor middle = attend(block, pass, normed, wanted(pass, x), aside);
  switch (c.residual) {
    case RLT_RESIDUAL_SHARED_NORM:
      return mlp(block, pass, wanted(pass, normed), middle, aside);
    case RLT_RESIDUAL_PARALLEL:
      return mlp(block, pass, apply_norm(c, block.mlp_norm, wanted(pass, x)), middle, aside);
    default:
      middle = add_laurel(block, pass, wanted(pass, normed), middle);
      return mlp(block, pass, apply_norm(c, block.mlp_norm, middle), middle, aside);
  }
}

// The same of the first of streams, by which the others are corrected; the block's input is for those.
at::Tensor sum_streams(const Block& block, const BlockPass& pass, const at::Tensor& x, Aside& aside) {
  at::Tensor predicted = predict(*pass.config, block, x);
  const at::Tensor y = sum_layers(block, pass, predicted.select(1, 0), aside);
  if (pass.rows.defined()) predicted = predicted.index_select(0, pass.rows);
  const at::Tensor all = correct(*pass.config, block, predicted, y);
  const at::Tensor more = add_input(block, pass, first_scaled(block, all), {});
  return at::cat({all.narrow(1, 0, 1), all.narrow(1, 1, all.size(1) - 1).add(more.unsqueeze(1))}, 1);
}

}  // namespace

at::Tensor block_forward(const Block& block, const BlockPass& pass, const at::Tensor& x, Aside& aside) {
  if (block.streams_router.weight.defined()) return sum_streams(block, pass, x, aside);
  at::Tensor y = sum_layers(block, pass, x, aside);
  y = add_input(block, pass, y, y);
  return block.scalar.defined() ? y.mul(block.scalar) : y;
}

at::Tensor checkpointed_block(const Block& block, const BlockPass& pass, const at::Tensor& x, Aside& aside) {
  if (!at::GradMode::is_enabled()) return block_forward(block, pass, x, aside);
  std::vector<at::Tensor> params = parameters(block, pass.adapter.on);
  const auto recipe = c10::make_intrusive<Recipe>(block, pass, params);
  for (at::Tensor BlockPass::*const member : kGiven) {
    if (given(pass, member)) params.push_back(pass.*member);
  }
  const variable_list made = Checkpoint::apply(x, at::TensorList(params), recipe);
  if (pass.loads) aside.load = aside.load.add(made[1]);
  if (block.lends) {
    aside.keys = made[made.size() - 2];
    aside.values = made.back();
  }
  return made[0];
}

}  // namespace rlt::nn
