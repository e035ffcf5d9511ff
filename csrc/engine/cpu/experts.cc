// Mixtures of experts, as nn::mix_experts has them: tokens sorted by their experts, one product for each.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/cpu/network.h"
#include "kernels/parallel.h"
#include "nn/block.h"

namespace rlt::engine {

void Network::read_experts(const nn::Block& from, Block& to) {
  adapt_experts(to, 1, &from);
  to.router_norm = read(from.router_norm);
  to.experts_norm = read(from.experts_norm);
  to.post_experts_norm = read(from.post_experts_norm);
  to.router_bias = read({from.router_bias, {}}).weight;
  to.expert_scale = read({from.expert_scale, {}}).weight;
}

// A copy: adapters are trained while it is in use.
void Network::adapt_experts(Block& block, int32_t number, const nn::Block* from) const {
  std::vector<nn::Mlp> layers;
  if (from != nullptr) layers = nn::adapted_experts(config(), *from);
  for (size_t e = 0; e < block.experts.size(); ++e) {
    std::vector<const nn::Linear*> up, down;
    if (!layers.empty()) {
      up = {&layers[e].gate, &layers[e].up};
      down = {&layers[e].down};
    }
    block.experts[e].up.set_adapter(number, up);
    block.experts[e].down.set_adapter(number, down);
  }
}

void Network::reserve_experts(const Block& block, Workspace& w, int64_t rows) const {
  if (block.experts.empty()) return;
  const int64_t all = rows * config().experts_per_token;
  w.sorted.reserve(all * config().hidden_size);
  w.made.reserve(all * block.experts[0].down.width());
  w.wide.reserve(rows * block.experts[0].up.width());
  w.routed.reserve(rows * block.router.width());
}

// Turns a row's outputs of the router into its experts, those with most first, and their shares.
void Network::choose(const Block& block, float* logits, int64_t* chosen, float* shares) const {
  const nn::Config& c = config();
  const int64_t experts = c.experts, k = c.experts_per_token;
  if (c.router_sigmoid) {
    for (int64_t e = 0; e < experts; ++e) logits[e] = 1 / (1 + std::exp(-logits[e]));
  } else {
    float peak;
    const float sum = kernels().softmax(logits, experts, 1, &peak);
    kernels().scale(logits, 1 / sum, logits, experts);
  }
  static thread_local std::vector<float> ranks;
  ranks.assign(logits, logits + experts);
  for (size_t e = 0; e < block.router_bias.size(); ++e) ranks[e] += block.router_bias[e];
  static thread_local std::vector<int64_t> ids;  // the chosen come first
  ids.resize(static_cast<size_t>(experts));
  std::iota(ids.begin(), ids.end(), 0);
  float sum = c.router_sigmoid ? 1e-6F : 0;
  for (int64_t i = 0; i < k; ++i) {
    const auto best = std::max_element(ids.begin() + i, ids.end(), [](int64_t a, int64_t b) {
      return ranks[static_cast<size_t>(a)] < ranks[static_cast<size_t>(b)];
    });
    chosen[i] = *best;
    std::swap(ids[static_cast<size_t>(i)], *best);
    shares[i] = logits[chosen[i]];
    sum += shares[i];
  }
  for (int64_t i = 0; i < k; ++i) {
    if (c.router_norm) shares[i] /= sum;
    if (!block.expert_scale.empty()) shares[i] *= block.expert_scale[static_cast<size_t>(chosen[i])];
    if (c.router_scale != 0) shares[i] *= static_cast<float>(c.router_scale);
  }
}

// gate = what a row's gate and up become together.
void Network::gate_expert(float* gate, float* up) const {
  const nn::Config& c = config();
  const int64_t n = c.expert_size;
  if (c.expert_limit == 0) return kernels().gate(gate, up, gate, n, c.activation);
  const auto limit = static_cast<float>(c.expert_limit), alpha = static_cast<float>(c.expert_alpha);
  for (int64_t i = 0; i < n; ++i) {
    gate[i] = std::min(gate[i], limit) * alpha;
    up[i] = std::clamp(up[i], -limit, limit) + 1;
  }
  kernels().gate(gate, up, gate, n, RLT_ACT_SILU);
  kernels().scale(gate, 1 / alpha, gate, n);
}

// Writes the experts of all rows to the segments that keep their positions.
void Network::record_routes(const Block& block, const Workspace& w) const {
  const int64_t* expert = w.chosen.data();
  for (const auto& [s, position] : w.rows) {
    const Work& span = w.spans[static_cast<size_t>(s)];
    const int64_t at = position < span.prefix_length ? position : position - span.prefix_length;
    int16_t* const to = segment_at(span, position).routes.data() + at * cache_shape_.routed + block.routed;
    for (int64_t i = 0; i < config().experts_per_token; ++i) to[i] = static_cast<int16_t>(*expert++);
  }
}

// Sorts the rows' choices by expert. Returns where each expert's begin, and adds which of an expert's go
// through adapters: they are in order of their rows.
std::vector<int64_t> Network::deal(const Block& block, Workspace& w,
                                   std::vector<std::vector<NumberedRows>>& adapted) const {
  std::vector<int64_t> first(block.experts.size() + 1);
  for (const int64_t e : w.chosen) ++first[static_cast<size_t>(e) + 1];
  for (size_t e = 1; e < first.size(); ++e) first[e] += first[e - 1];
  std::vector<int64_t> next = first;
  for (size_t i = 0; i < w.chosen.size(); ++i) w.place[i] = next[static_cast<size_t>(w.chosen[i])]++;
  adapted.resize(block.experts.size());
  const auto k = static_cast<size_t>(config().experts_per_token);
  for (const auto& [begin, end, number] : w.adapted) {
    for (auto i = static_cast<size_t>(begin) * k; i < static_cast<size_t>(end) * k; ++i) {
      const auto e = static_cast<size_t>(w.chosen[i]);
      const int64_t at = w.place[i] - first[e];
      if (adapted[e].empty() || adapted[e].back().adapter != number) adapted[e].push_back({at, at, number});
      adapted[e].back().end = at + 1;
    }
  }
  return first;
}

void Network::mix(const Block& block, Workspace& w, const float* x) const {
  const nn::Config& c = config();
  const int64_t n = c.hidden_size, rows = static_cast<int64_t>(w.rows.size()), k = c.experts_per_token;
  const float* judged = x;
  if (!block.router_norm.weight.empty()) {
    parallel_for(0, rows, grain(n), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        float* const row = w.sorted.data() + i * n;
        apply(block.router_norm, x + i * n, row, n);
        kernels().scale(row, static_cast<float>(1 / std::sqrt(static_cast<double>(n))), row, n);
      }
    });
    judged = w.sorted.data();
  }
  const int64_t logits = block.router.width();
  block.router.multiply({judged, n, rows}, {}, w.routed.data(), logits);
  w.chosen.resize(static_cast<size_t>(rows * k));
  w.shares.resize(w.chosen.size());
  w.place.resize(w.chosen.size());
  parallel_for(0, rows, grain(8 * c.experts), [&](int64_t i, int64_t to) {
    for (; i < to; ++i)
      choose(block, w.routed.data() + i * logits, w.chosen.data() + i * k, w.shares.data() + i * k);
  });
  record_routes(block, w);

  std::vector<std::vector<NumberedRows>> adapted;
  const std::vector<int64_t> first = deal(block, w, adapted);
  parallel_for(0, rows * k, grain(n), [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i)
      apply(block.experts_norm, x + i / k * n, w.sorted.data() + w.place[static_cast<size_t>(i)] * n, n);
  });
  const int64_t width = block.experts[0].up.width(), made = block.experts[0].down.width();
  for (size_t e = 0; e < block.experts.size(); ++e) {
    const int64_t from = first[e], count = first[e + 1] - from;
    if (count == 0) continue;
    const auto& [up, down] = block.experts[e];
    up.multiply({w.sorted.data() + from * n, n, count, &adapted[e]}, {}, w.wide.data(), width);
    parallel_for(0, count, grain(8 * width), [&](int64_t at, int64_t to) {
      for (; at < to; ++at) gate_expert(w.wide.data() + at * width, w.wide.data() + at * width + width / 2);
    });
    down.multiply({w.wide.data(), width, count, &adapted[e]}, {}, w.made.data() + from * made, made);
  }
  parallel_for(0, rows, grain(k * n), [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      float* const sum = w.sorted.data() + i * n;  // whose rows the experts have read
      std::fill_n(sum, n, 0.0F);
      for (auto at = static_cast<size_t>(i * k); at < static_cast<size_t>((i + 1) * k); ++at)
        kernels().add_scaled(w.shares[at], w.made.data() + w.place[at] * made, sum, n);
      apply(block.post_experts_norm, sum, sum, n);
      kernels().add_scaled(1, sum, w.x.data() + i * n, n);
    }
  });
}

}  // namespace rlt::engine
