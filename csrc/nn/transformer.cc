#include "nn/transformer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "kernels/parallel.h"
#include "nn/block.h"
#include "nn/block_loader.h"
#include "nn/streams.h"
#include "ops/packed.h"
#include "ops/send.h"

namespace rlt::nn {
namespace {

// rotate by the operators of the device that has the positions.
Rotation rotate_there(const Rope& rope, const at::Tensor& positions, const int32_t* cu, int64_t sequences) {
  const at::Tensor at = positions.to(at::kDouble).unsqueeze(1);
  at::Tensor angles = at.mul(send(rope.inv_freq, positions.device())), factor;
  if (rope.switch_length > 0) {
    std::vector<double> longs(static_cast<size_t>(positions.numel()), 0);
    for (int64_t s = 0; s < sequences; ++s) {
      if (cu[s + 1] - cu[s] > rope.switch_length)
        std::fill(longs.begin() + cu[s], longs.begin() + cu[s + 1], 1);
    }
    const at::Tensor is_long = send(longs, positions.device()).unsqueeze(1).gt(0);
    angles = at::where(is_long, at.mul(send(rope.long_inv_freq, positions.device())), angles);
    factor = at::where(is_long, rope.long_factor, rope.factor);
  }
  const auto scaled = [&](at::Tensor t) {
    if (factor.defined()) t.mul_(factor);
    return (factor.defined() || rope.factor == 1 ? t : t.mul_(rope.factor)).to(at::kFloat);
  };
  return {scaled(angles.cos()), scaled(angles.sin())};
}

// cos and sin of every row's angles, where the positions are.
Rotation rotate(const Rope& rope, const at::Tensor& positions, const int32_t* cu, int64_t sequences) {
  if (!positions.is_cpu()) return rotate_there(rope, positions, cu, sequences);
  const int64_t rows = positions.numel(), half = static_cast<int64_t>(rope.inv_freq.size());
  Rotation out{at::empty({rows, half}, at::kFloat), at::empty({rows, half}, at::kFloat)};
  const int64_t* at = positions.const_data_ptr<int64_t>();
  float *cosines = out.cos.mutable_data_ptr<float>(), *sines = out.sin.mutable_data_ptr<float>();
  parallel_for(0, sequences, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      for (int64_t i = cu[s]; i < cu[s + 1]; ++i) {
        rope.angles(at[i], cu[s + 1] - cu[s], cosines + i * half, sines + i * half);
      }
    }
  });
  return out;
}

// The rows that come 1, 2, ... and so on up to `most` tokens before each one, N for none.
std::vector<at::Tensor> earlier_rows(const int32_t* cu, const int32_t* continues, int64_t sequences,
                                     int64_t most) {
  const int64_t rows = cu[sequences];
  std::vector<int64_t> before(static_cast<size_t>(rows) + 1, rows), at(before);
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t i = cu[s]; i < cu[s + 1]; ++i) before[static_cast<size_t>(i)] = i - 1;
    const bool first = continues == nullptr || continues[s] < 0;
    if (cu[s] < cu[s + 1])
      before[static_cast<size_t>(cu[s])] = first ? rows : int64_t{cu[continues[s] + 1]} - 1;
  }
  std::iota(at.begin(), at.end(), int64_t{0});
  std::vector<at::Tensor> found;
  for (int64_t lag = 0; lag < most; ++lag) {
    for (int64_t& row : at) row = before[static_cast<size_t>(row)];
    found.push_back(at::tensor(c10::IntArrayRef(at.data(), static_cast<size_t>(rows)), at::kLong));
  }
  return found;
}

}  // namespace

Transformer::Transformer(const rlt_model_config& config, const Weights& weights)
    : config_(std::make_shared<Config>(config)), layers_(std::make_shared<Layers>()) {
  const Config& c = *config_;
  const int64_t width = c.hidden_size;
  Loader load(weights);
  BlockLoader blocks(load, c, linears_);
  const int64_t narrow = c.embedding_size > 0 ? c.embedding_size : width, distances = 2 * c.max_positions - 1;
  embed_ = load.stored("embed.weight", {c.vocab_size, narrow});
  TORCH_CHECK(!c.value_norm || embed_.is_cpu(),
              "a model with value_norm runs on the CPU only: use --device cpu");
  TORCH_CHECK(!c.gated_queries || embed_.is_cpu(), "gated_queries run on the CPU only: use --device cpu");
  if (c.rotary_dim == 0 && (c.distance == RLT_DISTANCE_NONE || load.has("positions.weight"))) {
    positions_ = load.tensor("positions.weight", {c.max_positions, narrow}).slice(0, c.first_position);
  }
  if (c.token_types > 0) types_ = load.tensor("types.weight", {c.token_types, narrow});
  if (c.embed_norm) embed_norm_ = blocks.norm("embed_norm", narrow);
  if (c.embedding_size > 0) embed_proj_ = load.linear("embed_proj", narrow, width);
  if (const int64_t each = load.size("inputs_norm.weight", 0); each > 0) {
    const int64_t rows = std::min(c.vocab_size, load.size("inputs.weight", 0));
    inputs_.table = load.stored("inputs.weight", {rows, c.layers * each});
    inputs_.proj = load.linear("inputs_proj", width, c.layers * each);
    inputs_.proj.index = -1;  // those of blocks count from 0
    inputs_.norm = blocks.norm("inputs_norm", each);
  }
  if (c.distance == RLT_DISTANCE_BIAS) distances_ = load.tensor("distances.weight", {c.heads, distances});
  if (c.distance == RLT_DISTANCE_CONTENT) distances_ = load.tensor("distances.weight", {distances, width});

  read_streams(load);
  layers_->blocks.resize(c.shared_layers ? 1 : static_cast<size_t>(c.layers));
  for (size_t n = 0; n < layers_->blocks.size(); ++n) blocks.read(n, layers_->blocks[n]);
  for (size_t n = 0; n < layers_->blocks.size(); ++n) {
    const size_t from = layers_->blocks[n].keys_of;
    if (from != n) layers_->blocks[from].lends = true;
  }
  if (!c.norm_after) norm_ = blocks.norm("norm", width);
  if (load.has_linear("head")) {
    head_ = load.linear("head", width, c.vocab_size);
    head_.rounded = true;  // training and a tied embedding have the same values in bfloat16
  } else {
    head_.weight = embed_;
    if (load.has("head.bias")) head_.bias = load.tensor("head.bias", {c.vocab_size});
  }
  load.finish();
  for (const Block& block : layers_->blocks) {
    layers_->groups.emplace_back(c, block);
    layers_->joints.emplace_back(layers_->groups.back());
  }
}

void Transformer::read_streams(Loader& load) {
  const int64_t width = config_->hidden_size;
  for (int64_t i = 0; load.has("spread." + std::to_string(i) + ".weight"); ++i) {
    streams_.spread.push_back(load.linear("spread." + std::to_string(i), width, width));
    streams_.merge.push_back(load.linear("merge." + std::to_string(i), width, width));
  }
  TORCH_CHECK(streams_.spread.empty() || embed_.is_cpu(),
              "a model with streams runs on the CPU only: use --device cpu");
}

// Few rows wait for the weights, which a group reads once; many are faster in a library's products. What is
// trained goes through the layers with gradients and without, so that both give the same bits: the first
// ratio of an update is 1.
bool Transformer::grouped(int64_t rows, const AdapterPass& pass) const {
  constexpr int64_t kFew = 256;
  const auto frozen = [](const at::Tensor& t) { return !t.defined() || !t.requires_grad(); };
  const auto all_frozen = [](const std::vector<Linear>& maps) {
    return std::all_of(maps.begin(), maps.end(), [](const Linear& map) { return map.frozen(); });
  };
  return rows <= kFew && pass.dropout == 0 && embed_.is_cpu() && frozen(embed_) && frozen(positions_) &&
         frozen(types_) && frozen(embed_norm_.weight) && frozen(embed_norm_.bias) &&
         embed_proj_.frozen_or_none() && frozen(distances_) && frozen(inputs_.table) &&
         inputs_.proj.frozen_or_none() && frozen(inputs_.proj.a) && frozen(inputs_.norm.weight) &&
         std::none_of(blocks().begin(), blocks().end(), trained) && all_frozen(streams_.spread) &&
         all_frozen(streams_.merge);
}

// A GPU's passes are as long as it takes to start their operators, unless their batches are large. Brings the
// adapters' parameters up to date, in one go.
bool Transformer::joined(const AdapterPass& pass) const {
  if ((embed_.is_cpu() && !joins_on_cpu) || pass.dropout > 0) return false;
  const auto& all = layers_->joints;
  if (!std::all_of(all.begin(), all.end(), [](const Joints& j) { return j.fit(); })) return false;
  if (!pass.on) return true;
  const std::lock_guard<std::mutex> lock(layers_->copying);
  std::vector<at::Tensor> to, from;
  for (const Joints& joints : all) {
    for (const JoinedLinear* layers : joints.all()) layers->list_copies(to, from);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  if (!to.empty()) at::_foreach_copy_(to, from);
  return true;
}

void Transformer::adapt(const std::string& layer, const at::Tensor& a, const at::Tensor& b, double scale,
                        const at::Tensor& magnitude) {
  const Adapter adapter{a, b, magnitude, scale};
  if (layer == "inputs_proj" && inputs_.table.defined()) {  // linears_ points into the blocks alone
    return nn::adapt({{layer, &inputs_.proj}}, layer, adapter);
  }
  if (!adapt_experts(layer, adapter)) nn::adapt(linears_, layer, adapter);
}

// Whether the layer is one of experts.
bool Transformer::adapt_experts(const std::string& layer, const Adapter& adapter) {
  for (size_t n = 0; n < layers_->blocks.size(); ++n) {
    Block& block = layers_->blocks[n];
    const std::string at = "layers." + std::to_string(n) + ".experts.";
    const bool up = layer == at + "gate_up";
    if (block.experts.empty() || (!up && layer != at + "down")) continue;
    const Linear& last = block.experts[0].down;
    const int64_t in = up ? last.out() : last.in(), out = up ? 2 * last.in() : last.out();
    const at::Tensor &a = adapter.a, &b = adapter.b;
    TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(1) && a.size(0) % config_->experts == 0 &&
                    a.size(1) == in && b.size(0) == out,
                "adapter of ", layer, ": A ", a.sizes(), " and B ", b.sizes(), " do not fit ",
                config_->experts, " weights [", out, ", ", in, "]");
    TORCH_CHECK(!last.weight.requires_grad(), "adapter of ", layer, ": its weights are trained themselves");
    TORCH_CHECK(!adapter.magnitude.defined(), "adapter of ", layer, ": experts take no magnitudes");
    (up ? block.lora.up : block.lora.down) = adapter;
    return true;
  }
  return false;
}

at::Tensor Transformer::embed(const Batch& in) const {
  const Config& c = *config_;
  const at::Tensor &tokens = in.tokens, &positions = in.positions;
  // A GPU would add the gradients of many tokens in any order.
  at::Tensor x =
      (embed_.is_cpu() ? at::embedding(embed_, tokens) : select_rows(embed_, tokens)).to(at::kFloat);
  if (c.embedding_scale != 1) x = x.mul(c.embedding_scale);
  if (in.noise.defined()) x = x.add(in.noise);
  if (types_.defined()) x = x.add(types_.select(0, 0));
  if (positions_.defined()) {
    const at::Tensor place =
        positions_.is_cpu() ? at::embedding(positions_, positions) : select_rows(positions_, positions);
    x = c.embed_norm ? norm_of_sum(c, embed_norm_, x, place) : x.add(place);
  } else if (c.embed_norm) {
    x = apply_norm(c, embed_norm_, x);
  }
  return c.embedding_size > 0 ? embed_proj_.forward(x, {}) : x;
}

// [N, P] of each block; x are the tokens' embeddings.
std::vector<at::Tensor> Transformer::block_inputs(const at::Tensor& tokens, const at::Tensor& x,
                                                  const AdapterPass& pass) const {
  const int64_t each = inputs_.norm.weight.size(0);
  const at::Tensor known = tokens.mul(tokens.lt(inputs_.table.size(0)));  // the rest have the first row
  const at::Tensor own = at::embedding(inputs_.table, known).to(at::kFloat).view({-1, each}),
                   made = inputs_.proj.forward(x, pass).view({-1, each});
  return apply_norm(*config_, inputs_.norm, made.mul(1 / std::sqrt(static_cast<double>(x.size(1)))))
      .add(own, std::sqrt(static_cast<double>(each)))
      .mul(std::sqrt(0.5))
      .view({x.size(0), config_->layers, each})
      .unbind(1);
}

at::Tensor Transformer::forward(const Batch& in, const AdapterPass& pass, bool checkpoint,
                                at::Tensor* load) const {
  const Config& c = *config_;
  if (load != nullptr) {
    TORCH_CHECK(c.experts > 0, "a model without experts has no load of experts");
    *load = at::zeros({2, c.experts});
  }
  // Where nothing is recorded, the operators go straight to the device's kernels: few rows wait for the rest.
  std::optional<at::AutoDispatchBelowADInplaceOrView> below;
  if (!at::GradMode::is_enabled()) below.emplace();
  BlockPass batch{config_, in.cu_seqlens, in.continues, {}, {}, {}, {}, pass, 0, nullptr, nullptr, {}, pass};
  if (c.query_growth > 0) {
    const at::Tensor spans = in.positions.div(c.query_span, "floor").to(at::kDouble).add(1);
    batch.query_factor = spans.log().mul(c.query_growth).add(1).to(at::kFloat).unsqueeze(1);
  }
  const int32_t* cu = checked_cu_seqlens(in.cu_seqlens, in.tokens.numel());
  if (c.distance != RLT_DISTANCE_NONE) {
    int64_t longest = 1;
    for (int64_t s = 0; s + 1 < in.cu_seqlens.numel(); ++s)
      longest = std::max<int64_t>(longest, cu[s + 1] - cu[s]);
    batch.distances = distances_.narrow(c.distance == RLT_DISTANCE_BIAS ? 1 : 0, c.max_positions - longest,
                                        2 * longest - 1);
  }
  int64_t routed = 0;  // layers with experts
  for (const Block& block : blocks()) routed += block.experts.empty() ? 0 : 1;
  TORCH_CHECK(!in.routes.defined() ||
                  in.routes.sizes() == c10::IntArrayRef({in.tokens.numel(), routed * c.experts_per_token}),
              "routes ", in.routes.sizes(), ": want ", in.tokens.numel(), " rows of ", c.experts_per_token,
              " experts in each of ", routed, " layers");
  routed = 0;
  int64_t taps = 0;
  for (const Block& block : blocks()) taps = block.conv.defined() ? std::max(taps, block.conv.size(1)) : taps;
  if (taps > 0) {
    const int64_t sequences = in.cu_seqlens.numel() - 1;
    const int32_t* continues =
        checked_continues(in.continues.defined() ? OptionalTensor(in.continues) : std::nullopt, sequences);
    batch.earlier = earlier_rows(cu, continues, sequences, taps - 1);
  }
  const bool grouped = this->grouped(in.tokens.numel(), pass), joined = !grouped && this->joined(pass);
  std::vector<Rotation> rotations;
  for (const Rope& rope : c.rope_list) {
    TORCH_CHECK(rope.switch_length == 0 || !in.continues.defined(),
                "a rope that switches by length does not let sequences continue another");
    rotations.push_back(rotate(rope, in.positions, cu, in.cu_seqlens.numel() - 1));
  }
  at::Tensor x = embed(in);
  std::vector<at::Tensor> inputs;
  if (inputs_.table.defined()) inputs = block_inputs(in.tokens, x, pass);
  if (!streams_.spread.empty()) x = spread(streams_, x);
  Aside aside;
  if (load != nullptr) aside.load = *load;
  std::map<size_t, Aside> lent;
  const auto layers = static_cast<size_t>(c.layers);
  for (size_t n = 0; n < layers; ++n) {
    const size_t stored = c.shared_layers ? 0 : n;  // dropout drops the same features in layers that are one
    batch.window = c.layer_windows[n];
    if (grouped) batch.groups = &groups(stored);
    if (joined) batch.joints = std::shared_ptr<const Joints>(layers_, &layers_->joints[stored]);
    if (c.rotary_dim > 0) batch.rotation = rotations[static_cast<size_t>(c.layer_ropes[n])];
    if (n + 1 == layers && in.rows.defined() && load == nullptr) {
      batch.rows = in.rows;
      if (pass.row_keys) batch.wanted.row_keys = pass.row_keys->index_select(0, in.rows);
    }
    const Block& block = blocks()[stored];
    if (in.routes.defined() && !block.experts.empty()) {
      batch.routes = in.routes.narrow(1, routed++ * c.experts_per_token, c.experts_per_token);
    }
    if (!inputs.empty()) batch.input = inputs[n];
    const bool borrows = block.keys_of != stored;
    batch.keys = borrows ? lent[block.keys_of].keys : at::Tensor();
    batch.values = borrows ? lent[block.keys_of].values : at::Tensor();
    batch.loads = load != nullptr && !block.experts.empty();
    x = checkpoint ? checkpointed_block(block, batch, x, aside) : block_forward(block, batch, x, aside);
    if (block.lends) lent[n] = aside;
  }
  if (load != nullptr) *load = aside.load;
  if (load != nullptr && in.rows.defined()) x = select_rows(x, in.rows);
  if (c.norm_after) return x;
  if (!streams_.spread.empty()) x = merge(streams_, x);
  x = apply_norm(c, norm_, x);
  return c.logit_divisor > 0 ? x.mul(1 / c.logit_divisor) : x;
}

}  // namespace rlt::nn
