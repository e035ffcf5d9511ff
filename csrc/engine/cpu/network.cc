#include "engine/cpu/network.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/shared_weights.h"
#include "kernels/parallel.h"
#include "nn/streams.h"
#include "ops/block.h"
#include "ops/widen.h"

namespace rlt::engine {

Network::Network(const nn::Transformer& decoder)
    : decoder_(decoder),
      blocks_(decoder.blocks().size()),
      head_group_({&decoder.head()}),
      inputs_group_({&decoder.inputs().proj}),
      head_(head_group_),
      inputs_(inputs_group_) {
  TORCH_CHECK(decoder.embed().is_contiguous(), "embed.weight must be dense");
  for (size_t i = 0; i < blocks_.size(); ++i) build_block(decoder.blocks()[i], decoder.groups(i), blocks_[i]);
  refresh();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const nn::Block& from = decoder.blocks()[i];
    const bool convolves = from.conv.defined();
    int64_t words = convolves ? from.conv.numel() - from.conv.size(0) : 0;
    if (from.a_log.defined()) words += nn::delta_key_width(config(), from) * from.z.out();
    if (!from.experts.empty()) {
      blocks_[i].routed = cache_shape_.routed;
      cache_shape_.routed += config().experts_per_token;
    }
    const Block& block = blocks_[i];
    cache_shape_.add_layer(convolves || block.lender != &block ? 0 : block.kv_heads, block.head_dim,
                           block.rounds(), words);
    value_width_ = std::max(value_width_, cache_shape_.layers.back().value_dim());
  }
}

void Network::build_block(const nn::Block& block, const nn::Groups& from, Block& to) {
  const nn::Config& c = config();
  const int64_t d = block.head_dim, queries = c.heads * d, keys = block.kv_heads * d;
  to.kv_heads = block.kv_heads;
  to.head_dim = d;
  to.keys_of = static_cast<int64_t>(block.keys_of);
  to.lender = &blocks_[block.keys_of];
  to.q = 0;
  to.stride = c.qkv == RLT_QKV_INTERLEAVED ? 3 * d : d;
  to.q_stride = c.gated_queries ? 2 * d : to.stride;
  switch (c.qkv) {
    case RLT_QKV_SPLIT:  // each begins a panel
      to.k = panels_of(c.gated_queries ? 2 * queries : queries) * kPanel;
      to.v = block.v.weight.defined() ? to.k + panels_of(keys) * kPanel : to.k;
      break;
    case RLT_QKV_FUSED:
      to.k = queries;
      to.v = queries + keys;
      break;
    default:
      to.k = d;
      to.v = 2 * d;
  }
  if (const auto& layers = from.qkv.layers(); layers.size() == 4) {
    const auto after = [&](size_t i) { return panels_of(layers[i]->out()) * kPanel; };
    to.z = after(0);
    to.rate = to.z + after(1);
    to.decays = to.rate + after(2);
  }
  to.cutoff = block.cutoff;
  to.router = PackedLinear(from.router);
  for (const nn::MlpGroups& expert : from.experts) {
    to.experts.push_back({PackedLinear(expert.up), PackedLinear(expert.down)});
  }
  const auto groups = groups_of(from);
  for (size_t i = 0; i < groups.size(); ++i) to.*kLinears[i] = PackedLinear(*groups[i]);
}

template <class F>
void Network::for_linears(const F& f) {
  for (Block& block : blocks_) {
    for (PackedLinear Block::*const layer : kLinears) {
      if (!(block.*layer).empty()) f(block.*layer);
    }
    if (!block.experts.empty()) f(block.router);
    for (Expert& expert : block.experts) {
      f(expert.up);
      f(expert.down);
    }
  }
  if (!inputs_.empty()) f(inputs_);
  f(head_);
}

void Network::set_adapter(int32_t number, const nn::Transformer* from) {
  if (from != nullptr) check_shares_weights(decoder_, *from);
  if (!inputs_.empty()) {
    inputs_.set_adapter(number, from == nullptr ? std::vector<const nn::Linear*>()
                                                : std::vector<const nn::Linear*>{&from->inputs().proj});
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    adapt_experts(blocks_[i], number, from == nullptr ? nullptr : &from->blocks()[i]);
    for (size_t j = 0; j < std::size(kLinears); ++j) {
      PackedLinear& to = blocks_[i].*kLinears[j];
      if (to.empty()) continue;
      to.set_adapter(number, from == nullptr ? std::vector<const nn::Linear*>()
                                             : groups_of(from->groups(i))[j]->layers());
    }
  }
}

void Network::refresh() {
  qkv_width_ = inner_width_ = mixed_width_ = 0;
  for_linears([](PackedLinear& layer) { layer.refresh(); });
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const nn::Block& from = decoder_.blocks()[i];
    Block& to = blocks_[i];
    if (!to.experts.empty()) read_experts(from, to);
    to.attn_norm = read(from.attn_norm);
    to.q_norm = read(from.q_norm);
    to.k_norm = read(from.k_norm);
    to.v_norm = read(from.v_norm);
    to.post_input_norm = read(from.post_input_norm);
    to.post_laurel_norm = read(from.post_laurel_norm);
    to.post_shared_norm = read(from.post_shared_norm);
    if (from.scalar.defined()) to.scalar = from.scalar.item<float>();
    to.post_attn_norm = read(from.post_attn_norm);
    to.mlp_norm = read(from.mlp_norm);
    to.sinks = read({from.sinks, {}}).weight;
    to.conv = read({from.conv, from.conv_bias});
    to.decay = read({from.a_log, from.dt_bias});
    to.delta = read({from.delta_norm, {}});
    mixed_width_ = std::max(mixed_width_, from.o.in());
    to.post_mlp_norm = read(from.post_mlp_norm);
    qkv_width_ = std::max(qkv_width_, to.qkv.width());
    inner_width_ = std::max(inner_width_, inner_width(to));
    for (const PackedLinear* layer : {&to.input_gate, &to.laurel_left}) {
      if (!layer->empty()) inner_width_ = std::max(inner_width_, layer->width());
    }
  }
  norm_ = read(decoder_.norm());
  inputs_norm_ = read(decoder_.inputs().norm);
  embed_ = decoder_.embed().detach().cpu();
  if (decoder_.positions().defined()) positions_ = decoder_.positions().detach().cpu();
}

int64_t Network::bytes() const {
  int64_t sum = head_.bytes() + inputs_.bytes();
  for (const Block& b : blocks_) {
    for (PackedLinear Block::*const layer : kLinears) sum += (b.*layer).bytes();
    sum += b.router.bytes();
    for (const Expert& expert : b.experts) sum += expert.up.bytes() + expert.down.bytes();
  }
  return sum;
}

Network::Norm Network::read(const nn::Norm& norm) const {
  const auto values = [](const at::Tensor& t) {
    if (!t.defined()) return std::vector<float>();
    const at::Tensor dense = t.detach().cpu().contiguous();
    return std::vector<float>(dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel());
  };
  return {values(norm.weight), values(norm.bias)};
}

void Network::apply(const Norm& norm, const float* x, float* y, int64_t n) const {
  const auto eps = static_cast<float>(config().norm_eps);
  if (norm.weight.empty()) {
    std::copy_n(x, n, y);
  } else if (config().norm == RLT_NORM_LAYER) {
    float mean;
    kernels().layer_norm(x, norm.weight.data(), norm.bias.empty() ? nullptr : norm.bias.data(), y, n, eps,
                         &mean);
  } else {
    kernels().rms_norm(x, norm.weight.data(), config().norm == RLT_NORM_RMS_PLUS_ONE ? 1 : 0, y, n, eps);
  }
}

void Network::norm_all_heads(const Block& block, Workspace& w) const {
  const nn::Config& c = config();
  const int64_t queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  parallel_for(0, static_cast<int64_t>(w.rows.size()), grain(queries + keys),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   float* const row = w.qkv.data() + i * block.qkv.width();
                   apply(block.q_norm, row + block.q, row + block.q, queries);
                   apply(block.k_norm, row + block.k, row + block.k, keys);
                 }
               });
}

void Network::gate_heads(const Block& block, Workspace& w) const {
  const nn::Config& c = config();
  const at::AutoDispatchBelowADInplaceOrView below;
  const std::vector<int64_t> sizes = {static_cast<int64_t>(w.rows.size()), c.heads, c.head_dim};
  const at::Tensor gates = at::from_blob(w.qkv.data() + block.q + c.head_dim, sizes,
                                         {block.qkv.width(), block.q_stride, 1}, at::kFloat);
  at::from_blob(w.attended.data(), sizes, at::kFloat).mul_(gates.sigmoid());
}

void Network::apply_rows(const Norm& norm, const Buffer<float>& x, float* y, int64_t rows) const {
  const int64_t n = config().hidden_size;
  parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) apply(norm, x.data() + i * n, y + i * n, n);
  });
}

void Network::reserve(Workspace& w, int64_t rows, int64_t outs, int64_t positions) const {
  const nn::Config& c = config();
  w.spans.reserve(static_cast<size_t>(rows));
  w.rows.reserve(static_cast<size_t>(rows));
  w.written.reserve(static_cast<size_t>(rows));
  w.prompts.reserve(static_cast<size_t>(rows));
  w.last.reserve(outs * c.hidden_size);
  w.logits.reserve(outs * logits_stride());
  w.x.reserve(rows * c.hidden_size);
  w.h.reserve(rows * c.hidden_size);
  // Also the output of a layer whose sum with x waits for a norm.
  w.qkv.reserve(rows * std::max(qkv_width_, panels_of(c.hidden_size) * kPanel));
  w.attended.reserve(rows * mixed_width_);
  w.inner.reserve(rows * inner_width_);
  if (!inputs_.empty()) w.inputs.reserve(rows * inputs_.width());
  for (const Block& block : blocks_) reserve_experts(block, w, rows);
  w.rotations.reserve(rows * static_cast<int64_t>(c.rope_list.size()) * c.rotary_dim);
  // The first key seen need not begin a panel, nor the last one end it.
  w.score_stride = std::max(w.score_stride, positions + 2 * kPanel);
  w.scores.reserve(thread_count() * score_area(w));
}

void Network::list_rows(Workspace& w) const {
  w.rows.clear();
  w.written.clear();
  w.prompts.clear();
  w.adapted.clear();
  for (size_t s = 0; s < w.spans.size(); ++s) {
    const Work& span = w.spans[s];
    const auto first = static_cast<int64_t>(w.rows.size());
    if (span.adapter > 0) {
      if (w.adapted.empty() || w.adapted.back().adapter != span.adapter) {
        w.adapted.push_back({first, first, span.adapter});
      }
      w.adapted.back().end += span.count;
    }
    const bool prompt = span.position < span.prefix_length;
    if (prompt) w.prompts.push_back({&span, first});
    for (int64_t i = 0; i < span.count; ++i) {
      if (!prompt) w.written.push_back(first + i);
      w.rows.push_back({static_cast<int32_t>(s), span.position + i});
    }
  }
}

void Network::embed(Workspace& w) const {
  const nn::Config& c = config();
  const auto scale = static_cast<float>(c.embedding_scale);
  const auto rows = static_cast<int64_t>(w.rows.size());
  parallel_for(0, rows, grain(c.hidden_size), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [s, position] = w.rows[static_cast<size_t>(i)];
      const Work& span = w.spans[static_cast<size_t>(s)];
      float* x = w.x.data() + i * c.hidden_size;
      const float* row = float_rows(embed_, span.tokens[position - span.position], 1, x);
      if (row != x) std::copy_n(row, c.hidden_size, x);
      if (scale != 1) kernels().scale(x, scale, x, c.hidden_size);
      if (c.rotary_dim > 0) continue;
      const float* place = positions_.const_data_ptr<float>() + position * c.hidden_size;
      kernels().add_scaled(1, place, x, c.hidden_size);
    }
  });
}

// For each row and rope [rotary_dim]: cosines, then sines.
void Network::fill_rotations(Workspace& w) const {
  const nn::Config& c = config();
  const int64_t half = c.rotary_dim / 2, ropes = static_cast<int64_t>(c.rope_list.size());
  if (half == 0) return;
  const auto rows = static_cast<int64_t>(w.rows.size());
  parallel_for(0, rows, grain(64 * half * ropes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [s, position] = w.rows[static_cast<size_t>(i)];
      const int64_t length = w.spans[static_cast<size_t>(s)].length;
      for (int64_t t = 0; t < ropes; ++t) {
        float* out = w.rotations.data() + (i * ropes + t) * c.rotary_dim;
        c.rope_list[static_cast<size_t>(t)].angles(position, length, out, out + half);
      }
    }
  });
}

Rows Network::rows_of(const Workspace& w, const Buffer<float>& data, int64_t stride) const {
  return {data.data(), stride, static_cast<int64_t>(w.rows.size()), &w.adapted};
}

// Adds to w.x what attention and MLP make of it.
void Network::run_block(size_t n, Workspace& w) const {
  const nn::Config& c = config();
  const Block& block = blocks_[n];
  const auto rows = static_cast<int64_t>(w.rows.size());
  apply_rows(block.attn_norm, w.x, w.h.data(), rows);
  block.qkv.multiply(rows_of(w, w.h, c.hidden_size), {}, w.qkv.data(), block.qkv.width());
  if (!block.delta.weight.empty()) {
    delta_rule(block, static_cast<int64_t>(n), w);
  } else if (!block.conv.weight.empty()) {
    convolve(block, static_cast<int64_t>(n), w);
  } else {
    if (c.qk_norm == RLT_QK_NORM_ALL) norm_all_heads(block, w);
    attention(block, static_cast<int64_t>(n), w);
    if (c.gated_queries) gate_heads(block, w);
  }
  if (c.residual == RLT_RESIDUAL_PARALLEL) apply_rows(block.mlp_norm, w.x, w.h.data(), rows);
  add_linear(block.o, block.post_attn_norm, rows_of(w, w.attended, block.o.in()), w);
  if (!block.laurel_left.empty()) add_laurel(block, w);
  if (c.residual == RLT_RESIDUAL_SEQUENTIAL) apply_rows(block.mlp_norm, w.x, w.h.data(), rows);
  mlp(n, w);
}

void Network::forward(Workspace& w) const {
  const nn::Config& c = config();
  for (const Work& span : w.spans) {
    const int64_t in_tail = span.position + span.count - span.prefix_length;
    if (span.position < span.prefix_length) {
      kept(span.prefix).grow(span.prefix_length);
      kept(span.prefix).clear_after(span.position, span.position + span.count);
    }
    if (in_tail > 0) kept(span.tail).grow(in_tail);
  }
  list_rows(w);
  embed(w);
  if (!inputs_.empty()) fill_inputs(w);
  fill_rotations(w);
  const auto rows = static_cast<int64_t>(w.rows.size());
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor x = at::from_blob(w.x.data(), {rows, c.hidden_size}, at::kFloat);
  at::Tensor streams;
  if (!decoder_.streams().spread.empty()) streams = nn::spread(decoder_.streams(), x);
  for (size_t n = 0; n < blocks_.size(); ++n) {
    if (streams.defined()) {
      run_streams(n, w, streams);
      continue;
    }
    const Block& block = blocks_[n];
    run_block(n, w);
    if (!block.input_gate.empty()) add_input(n, w);
    if (block.scalar != 1) kernels().scale(w.x.data(), block.scalar, w.x.data(), rows * c.hidden_size);
  }
  if (streams.defined()) x.copy_(nn::merge(decoder_.streams(), streams));
  int64_t row = 0;
  for (const Work& span : w.spans) {
    row += span.count;
    if (span.out < 0) continue;
    float* const last = w.last.data() + span.out * c.hidden_size;
    apply(norm_, w.x.data() + (row - 1) * c.hidden_size, last, c.hidden_size);
    if (c.logit_divisor > 0) {
      kernels().scale(last, static_cast<float>(1 / c.logit_divisor), last, c.hidden_size);
    }
  }
}

void Network::mlp(size_t layer, Workspace& w) const {
  const nn::Config& c = config();
  const Block& block = blocks_[layer];
  const nn::Block& from = decoder_.blocks()[layer];
  const auto rows = static_cast<int64_t>(w.rows.size());
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor h = at::from_blob(w.h.data(), {rows, c.hidden_size}, at::kFloat),
                   x = at::from_blob(w.x.data(), {rows, c.hidden_size}, at::kFloat);
  const bool beside = from.experts_norm.weight.defined();  // the MLP's sum with what experts make is normed
  at::Tensor residual;
  if (!block.experts.empty()) {
    if (beside) {
      residual = x.clone();
      x.zero_();
    }
    mix(block, w, (beside ? residual : h).const_data_ptr<float>());
    if (block.up.empty()) return;
  }
  const int64_t width = inner_width(block);
  if (block.cutoff) {
    block.up.multiply(rows_of(w, w.h, c.hidden_size), {}, w.inner.data(), width);
    const auto half = [&](int64_t begin) {
      return at::from_blob(w.inner.data() + begin, {rows, from.up.out()}, {width, 1}, at::kFloat);
    };
    const at::Tensor gate = half(0);
    gate.copy_(gated_act(nn::keep_top(gate, *block.cutoff), half(width / 2), c.activation));
  } else {
    block.up.multiply(rows_of(w, w.h, c.hidden_size), {c.activation, c.gated != 0}, w.inner.data(), width);
  }
  if (from.shared_gate.weight.defined()) {
    at::from_blob(w.inner.data(), {rows, width}, at::kFloat).mul_(from.shared_gate.forward(h, {}).sigmoid());
  }
  add_linear(block.down, beside ? block.post_shared_norm : block.post_mlp_norm, rows_of(w, w.inner, width),
             w);
  if (!beside) return;
  apply_rows(block.post_mlp_norm, w.x, w.x.data(), rows);
  x.add_(residual);
}

void Network::add_linear(const PackedLinear& layer, const Norm& norm, const Rows& in, Workspace& w) const {
  const int64_t n = config().hidden_size;
  // A width that is no multiple of a panel, or a norm on the way, needs a place of its own for the product.
  const bool direct = n % kPanel == 0 && norm.weight.empty();
  if (direct) return layer.multiply(in, {kNoActivation, false, {w.x.data(), n}}, w.x.data(), n);
  layer.multiply(in, {}, w.qkv.data(), layer.width());
  parallel_for(0, in.count, grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* y = w.qkv.data() + i * layer.width();
      if (!norm.weight.empty()) apply(norm, y, y, n);
      kernels().add_scaled(1, y, w.x.data() + i * n, n);
    }
  });
}

void Network::head(Workspace& w, int64_t outs) const {
  const nn::Config& c = config();
  head_.multiply({w.last.data(), c.hidden_size, outs}, {}, w.logits.data(), logits_stride());
  if (c.logit_softcap == 0) return;
  const auto cap = static_cast<float>(c.logit_softcap);
  parallel_for(0, outs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels().softcap(w.logits.data() + i * logits_stride(), c.vocab_size, 1 / cap, cap);
    }
  });
}

}  // namespace rlt::engine
