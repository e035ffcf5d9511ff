#include "cuda/engine/network.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <array>

#include "cuda/ops/launch.h"
#include "engine/shared_weights.h"
#include "ops/send.h"

namespace rlt::cuda {
namespace {

// The type of all product weights; float32, which can represent the others, if they differ.
at::ScalarType common_type(const nn::Transformer& decoder) {
  const at::ScalarType first = decoder.groups(0).o.layers()[0]->weight.scalar_type();
  for (size_t i = 0; i < decoder.blocks().size(); ++i) {
    for (const nn::LinearGroup* group : engine::groups_of(decoder.groups(i))) {
      for (const nn::Linear* layer : group->layers()) {
        if (layer->weight.scalar_type() != first) return at::kFloat;
      }
    }
  }
  return first;
}

const float* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

at::Tensor or_none(const std::vector<double>& values, c10::Device device) {
  return values.empty() ? at::Tensor() : send(values, device);
}

}  // namespace

Network::Block::Block(const nn::Groups& groups)
    : qkv(groups.qkv.layers()), o(groups.o.layers()), up(groups.up.layers()), down(groups.down.layers()) {}

Network::Network(const nn::Transformer& decoder, c10::Device device)
    : decoder_(decoder), device_(device), head_({&decoder.head()}), type_(common_type(decoder)) {
  const nn::Config& c = config();
  TORCH_CHECK(c.query_growth == 0,
              "a model whose queries grow with their positions (llama_4_scaling_beta) does not "
              "generate on a GPU; use --device cpu");
  shape_ = {c.layers, c.heads, c.kv_heads, c.head_dim, type_of(type_)};
  for (size_t i = 0; i < decoder.blocks().size(); ++i) blocks_.emplace_back(decoder.groups(i));
  for (const nn::Rope& rope : c.rope_list) {
    ropes_.push_back(
        {send(rope.inv_freq, device), or_none(rope.long_inv_freq, device), rope.factor, rope.long_factor});
  }
  refresh();
}

at::Tensor Network::empty(at::IntArrayRef sizes, at::ScalarType type) const {
  return at::empty(sizes, at::TensorOptions(type).device(device_));
}

bool Network::refresh() {
  const at::AutoDispatchBelowADInplaceOrView below;
  bool in_place = true;
  const auto move = [&](at::Tensor& to, const at::Tensor& from) {
    const at::Tensor now = from.defined() ? from.detach().to(device_).contiguous() : at::Tensor();
    in_place = in_place && same_place(now, to);
    to = now;
  };
  const auto take = [&](nn::Norm& to, const nn::Norm& from) {
    move(to.weight, from.weight);
    if (from.bias.defined()) {
      move(to.bias, from.bias);
    } else if (config().norm == RLT_NORM_LAYER && to.weight.defined() && !to.bias.defined()) {
      to.bias = at::zeros_like(to.weight);  // the kernel reads one
    }
  };
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const nn::Block& from = decoder_.blocks()[i];
    Block& to = blocks_[i];
    take(to.attn_norm, from.attn_norm);
    take(to.q_norm, from.q_norm);
    take(to.k_norm, from.k_norm);
    take(to.post_attn_norm, from.post_attn_norm);
    take(to.mlp_norm, from.mlp_norm);
    take(to.post_mlp_norm, from.post_mlp_norm);
    for (Product* product : {&to.qkv, &to.o, &to.up, &to.down}) {
      in_place = product->refresh(device_) && in_place;
    }
  }
  take(norm_, decoder_.norm());
  move(embed_, decoder_.embed());
  move(positions_, decoder_.positions());
  return head_.refresh(device_) && in_place;
}

bool Network::set_adapter(int32_t number, const nn::Transformer* from) {
  bool in_place = true;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& to = blocks_[i];
    const std::array<Product*, 4> products{&to.qkv, &to.o, &to.up, &to.down};
    for (size_t j = 0; j < products.size(); ++j) {
      const auto layers = from == nullptr ? std::vector<const nn::Linear*>()
                                          : engine::groups_of(from->groups(i))[j]->layers();
      in_place = products[j]->set_adapter(number, layers, device_) && in_place;
    }
  }
  return in_place;
}

at::Tensor Network::norm(const nn::Norm& norm, const at::Tensor& x, at::ScalarType type) const {
  if (!norm.weight.defined()) return x.to(type);
  const nn::Config& c = config();
  const int64_t rows = x.size(0), width = x.size(1);
  at::Tensor y = empty({rows, width}, type);
  const Matrix in{x.const_data_ptr<float>(), width};
  const Stream stream = current_stream(device_);
  if (c.norm == RLT_NORM_LAYER) {
    layer_norm(stream, in, nullptr, norm.weight.const_data_ptr<float>(), data_or_null(norm.bias), c.norm_eps,
               y.mutable_data_ptr(), type_of(type), nullptr, nullptr, nullptr, rows, width);
  } else {
    rms_norm(stream, in, norm.weight.const_data_ptr<float>(), c.norm == RLT_NORM_RMS_PLUS_ONE, c.norm_eps,
             y.mutable_data_ptr(), type_of(type), nullptr, rows, width);
  }
  return y;
}

Angles Network::angles(size_t layer) const {
  const nn::Config& c = config();
  if (c.rotary_dim == 0) return {nullptr, nullptr, 1, 1, 0};
  const Rope& rope = ropes_[static_cast<size_t>(c.layer_ropes[layer])];
  const auto* const longer =
      rope.long_inv_freq.defined() ? rope.long_inv_freq.const_data_ptr<double>() : nullptr;
  return {rope.inv_freq.const_data_ptr<double>(), longer, rope.factor, rope.long_factor, c.rotary_dim / 2};
}

Qkv Network::layout() const {
  const nn::Config& c = config();
  const int64_t d = c.head_dim, queries = c.heads * d, keys = c.kv_heads * d;
  if (c.qkv == RLT_QKV_INTERLEAVED) return {0, d, 2 * d, 3 * d, 3 * d, queries + 2 * keys};
  return {0, queries, queries + keys, d, d, queries + 2 * keys};
}

// What the kernel that stores q and k does not do: norms of all heads together and rotations of neighbours.
at::Tensor Network::prepared(const Block& block, const at::Tensor& qkv) const {
  const nn::Config& c = config();
  if (c.qk_norm != RLT_QK_NORM_ALL && !c.rope_pairs) return qkv;
  const int64_t queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  const auto part = [&](const nn::Norm& norm, int64_t from, int64_t width) {
    at::Tensor x = qkv.narrow(1, from, width).contiguous();
    if (c.qk_norm == RLT_QK_NORM_ALL) x = this->norm(norm, x, at::kFloat);
    return c.rope_pairs ? nn::pairs_to_halves(c, x) : x;
  };
  return at::cat({part(block.q_norm, 0, queries), part(block.k_norm, queries, keys),
                  qkv.narrow(1, queries + keys, keys)},
                 1);
}

at::Tensor Network::attend(size_t layer, const at::Tensor& x, const Pass& pass, void* room) const {
  const nn::Config& c = config();
  const Block& block = blocks_[layer];
  const at::Tensor qkv = prepared(block, block.qkv(x, pass.ranges));
  const bool heads = c.qk_norm == RLT_QK_NORM_HEADS;
  at::Tensor queries = empty({pass.count, c.heads * c.head_dim}, type_);
  store(current_stream(device_), pass.rows, pass.places, pass.pages, qkv.const_data_ptr<float>(), layout(),
        angles(layer), heads ? data_or_null(block.q_norm.weight) : nullptr,
        heads ? data_or_null(block.k_norm.weight) : nullptr, c.norm == RLT_NORM_RMS_PLUS_ONE, c.norm_eps,
        shape_, static_cast<int64_t>(layer), queries.mutable_data_ptr(), pass.count);
  return mix(layer, queries, pass, room);
}

at::Tensor Network::mix(size_t layer, const at::Tensor& queries, const Pass& pass, void* room) const {
  const nn::Config& c = config();
  const int64_t d = c.head_dim, window = c.layer_windows[layer];
  const Stream stream = current_stream(device_);
  // libtorch's flash attention reads 16 bytes at a time and has no softcap.
  const bool flash = pass.borders.defined() && device_.is_cuda() && type_ != at::kFloat && d % 8 == 0 &&
                     d <= 256 && c.attention_softcap == 0;
  if (flash) {
    at::Tensor k = empty({pass.positions, c.kv_heads, d}, type_), v = at::empty_like(k);
    gather(stream, pass.places, pass.pages, pass.borders.const_data_ptr<int32_t>(), shape_,
           static_cast<int64_t>(layer), k.mutable_data_ptr(), v.mutable_data_ptr(), pass.borders.numel() - 1,
           pass.positions);
    const std::optional<int64_t> before = window > 0 ? std::optional<int64_t>(window - 1) : std::nullopt;
    return std::get<0>(at::_flash_attention_forward(
                           queries.view({pass.count, c.heads, d}), k, v, pass.row_borders, pass.borders,
                           pass.most_rows, pass.most_positions, 0.0, true, false,
                           std::optional<double>(c.attention_scale), before, std::nullopt))
        .view({pass.count, c.heads * d});
  }
  at::Tensor out = empty({pass.count, c.heads * d}, type_);
  decode_attention(stream, pass.rows, pass.places, pass.pages, queries.const_data_ptr(), c.attention_scale,
                   window, c.attention_softcap, shape_, static_cast<int64_t>(layer), out.mutable_data_ptr(),
                   pass.count, pass.longest, room);
  return out;
}

at::Tensor Network::widen(const Block& block, const at::Tensor& x, const Pass& pass) const {
  const nn::Config& c = config();
  const at::Tensor wide = block.up(x, pass.ranges);
  const int64_t inner = c.intermediate_size, stride = wide.size(1);
  const float* data = wide.const_data_ptr<float>();
  at::Tensor y = empty({pass.count, inner}, type_);
  const Matrix up{c.gated ? data + inner : nullptr, stride};
  gated(current_stream(device_), {data, stride}, up, c.activation, y.mutable_data_ptr(), shape_.type,
        pass.count, inner);
  return y;
}

void Network::add(const Product& layer, const nn::Norm& norm, at::Tensor& x, const at::Tensor& y,
                  const Pass& pass) const {
  if (config().post_norms) {
    x.add_(this->norm(norm, layer(y, pass.ranges), at::kFloat));
  } else {
    layer.add_to(x, y, pass.ranges);
  }
}

at::Tensor Network::forward(const Pass& pass) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const nn::Config& c = config();
  at::Tensor x = empty({pass.count, c.hidden_size}, at::kFloat);
  embed(current_stream(device_), pass.rows, embed_.const_data_ptr(), type_of(embed_.scalar_type()),
        data_or_null(positions_), static_cast<float>(c.embedding_scale), x.mutable_data_ptr<float>(),
        pass.count, c.hidden_size);
  at::Tensor room = empty({decode_room(shape_, pass.count, pass.longest)}, at::kByte);
  for (size_t n = 0; n < blocks_.size(); ++n) {
    const Block& block = blocks_[n];
    const at::Tensor normed = norm(block.attn_norm, x, type_);
    const at::Tensor mixed = attend(n, normed, pass, room.mutable_data_ptr());
    // If the MLP reads the same x as attention, compute its input before attention is added to x.
    const at::Tensor before = c.residual == RLT_RESIDUAL_PARALLEL ? norm(block.mlp_norm, x, type_) : normed;
    add(block.o, block.post_attn_norm, x, mixed, pass);
    const at::Tensor in = c.residual == RLT_RESIDUAL_SEQUENTIAL ? norm(block.mlp_norm, x, type_) : before;
    add(block.down, block.post_mlp_norm, x, widen(block, in, pass), pass);
  }
  return x;
}

at::Tensor Network::last(const at::Tensor& x) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const double divisor = config().logit_divisor;
  if (divisor == 0) return norm(norm_, x, head_.type());
  return norm(norm_, x, at::kFloat).mul_(1 / divisor).to(head_.type());
}

at::Tensor Network::logits(const at::Tensor& last) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  return head_(last, {});
}

void Network::logits_into(at::Tensor& logits, const at::Tensor& last) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  head_.into(logits, last);
}

}  // namespace rlt::cuda
