// What blocks of some models have beside attention and MLP: inputs of their own, LAuReLs, streams.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cmath>

#include "engine/cpu/network.h"
#include "kernels/parallel.h"
#include "nn/block.h"
#include "nn/streams.h"
#include "ops/widen.h"

namespace rlt::engine {

// [L, P] of each row, as Transformer::block_inputs makes them.
void Network::fill_inputs(Workspace& w) const {
  const int64_t width = config().hidden_size, each = static_cast<int64_t>(inputs_norm_.weight.size());
  inputs_.multiply(rows_of(w, w.x, width), {}, w.inputs.data(), inputs_.width());
  const auto shrink = static_cast<float>(1 / std::sqrt(static_cast<double>(width))),
             grow = static_cast<float>(std::sqrt(static_cast<double>(each)));
  const int64_t all = config().layers * each;
  parallel_for(0, static_cast<int64_t>(w.rows.size()), grain(8 * all), [&](int64_t begin, int64_t end) {
    static thread_local Buffer<float> wide;
    wide.reserve(all);
    for (int64_t i = begin; i < end; ++i) {
      const auto [s, position] = w.rows[static_cast<size_t>(i)];
      const Work& span = w.spans[static_cast<size_t>(s)];
      const int32_t token = span.tokens[position - span.position];
      const at::Tensor& table = decoder_.inputs().table;
      const float* const own = float_rows(table, token < table.size(0) ? token : 0, 1, wide.data());
      float* const row = w.inputs.data() + i * inputs_.width();
      kernels().scale(row, shrink, row, all);
      for (int64_t at = 0; at < all; at += each) apply(inputs_norm_, row + at, row + at, each);
      kernels().add_scaled(grow, own, row, all);
      kernels().scale(row, static_cast<float>(std::sqrt(0.5)), row, all);
    }
  });
}

// Adds what a block's input makes of w.x; with streams it takes the place of w.x.
void Network::add_input(size_t layer, Workspace& w) const {
  const nn::Config& c = config();
  const Block& block = blocks_[layer];
  const auto rows = static_cast<int64_t>(w.rows.size()),
             each = static_cast<int64_t>(inputs_norm_.weight.size()), width = block.input_gate.width();
  block.input_gate.multiply(rows_of(w, w.x, c.hidden_size), {c.activation}, w.inner.data(), width);
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor own = at::from_blob(w.inputs.data() + static_cast<int64_t>(layer) * each, {rows, each},
                                       {inputs_.width(), 1}, at::kFloat);
  at::from_blob(w.inner.data(), {rows, each}, {width, 1}, at::kFloat).mul_(own);
  if (!decoder_.streams().spread.empty()) std::fill_n(w.x.data(), rows * c.hidden_size, 0.0F);
  add_linear(block.input_proj, block.post_input_norm, rows_of(w, w.inner, width), w);
}

// As training's add_laurel, of w.h, the attention's input.
void Network::add_laurel(const Block& block, Workspace& w) const {
  const int64_t width = block.laurel_left.width(), n = config().hidden_size,
                all = static_cast<int64_t>(w.rows.size()) * n;
  block.laurel_left.multiply(rows_of(w, w.h, n), {}, w.inner.data(), width);
  add_linear(block.laurel_right, block.post_laurel_norm, rows_of(w, w.inner, width), w);
  kernels().add_scaled(1, w.h.data(), w.x.data(), all);
  kernels().scale(w.x.data(), static_cast<float>(std::sqrt(0.5)), w.x.data(), all);
}

// Runs a block on the first of the streams [rows, S, H].
void Network::run_streams(size_t layer, Workspace& w, at::Tensor& streams) const {
  const nn::Block& block = decoder_.blocks()[layer];
  const at::Tensor x = at::from_blob(w.x.data(), {streams.size(0), streams.size(2)}, at::kFloat);
  const at::Tensor predicted = nn::predict(config(), block, streams);
  x.copy_(predicted.select(1, 0));
  run_block(layer, w);
  streams = nn::correct(config(), block, predicted, x);
  x.copy_(nn::first_scaled(block, streams));
  add_input(layer, w);
  streams.narrow(1, 1, streams.size(1) - 1).add_(x.unsqueeze(1));
}

}  // namespace rlt::engine
