// Mixtures of experts, as nn::mix_experts has them: tokens sorted by their experts, one product for each.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/cpu/network.h"
#include "kernels/parallel.h"
#include "nn/block.h"

namespace rlt::engine {

void Network::read_experts(const nn::Block& from, Block& to) {
  copy_lora(to, 1, from.lora);
  to.router_norm = read(from.router_norm);
  to.experts_norm = read(from.experts_norm);
  to.post_experts_norm = read(from.post_experts_norm);
  to.router_bias = read({from.router_bias, {}}).weight;
  to.expert_scale = read({from.expert_scale, {}}).weight;
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

void Network::mix_rows(const Block& block, Workspace& w, const float* x, int64_t begin, int64_t end) const {
  const nn::Config& c = config();
  const int64_t n = c.hidden_size, rows = end - begin, k = c.experts_per_token;
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

  std::vector<int64_t> first(block.experts.size() + 1);  // of each expert's rows in w.sorted
  for (const int64_t e : w.chosen) ++first[static_cast<size_t>(e) + 1];
  for (size_t e = 1; e < first.size(); ++e) first[e] += first[e - 1];
  std::vector<int64_t> next = first;
  for (size_t i = 0; i < w.chosen.size(); ++i) w.place[i] = next[static_cast<size_t>(w.chosen[i])]++;
  parallel_for(0, rows * k, grain(n), [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i)
      apply(block.experts_norm, x + i / k * n, w.sorted.data() + w.place[static_cast<size_t>(i)] * n, n);
  });

  const int64_t width = block.experts[0].up.width(), made = block.experts[0].down.width();
  for (size_t e = 0; e < block.experts.size(); ++e) {
    const int64_t from = first[e], count = first[e + 1] - from;
    if (count == 0) continue;
    block.experts[e].up.multiply({w.sorted.data() + from * n, n, count}, {}, w.wide.data(), width);
    parallel_for(0, count, grain(8 * width), [&](int64_t at, int64_t to) {
      for (; at < to; ++at) gate_expert(w.wide.data() + at * width, w.wide.data() + at * width + width / 2);
    });
    block.experts[e].down.multiply({w.wide.data(), width, count}, {}, w.made.data() + from * made, made);
  }
  parallel_for(0, rows, grain(k * n), [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      float* const sum = w.sorted.data() + i * n;  // whose rows the experts have read
      std::fill_n(sum, n, 0.0F);
      for (auto at = static_cast<size_t>(i * k); at < static_cast<size_t>((i + 1) * k); ++at)
        kernels().add_scaled(w.shares[at], w.made.data() + w.place[at] * made, sum, n);
      apply(block.post_experts_norm, sum, sum, n);
      kernels().add_scaled(1, sum, w.x.data() + (begin + i) * n, n);
    }
  });
}

// The rows of each adapter of experts pass them by themselves, by training's operators.
void Network::mix(size_t layer, Workspace& w, const at::Tensor& x) const {
  const nn::Config& c = config();
  const Block& block = blocks_[layer];
  int64_t begin = 0;
  const auto run = [&](int64_t end, const nn::ExpertLora* lora) {
    if (begin == end) return;
    const at::Tensor rows = x.narrow(0, begin, end - begin);
    at::Tensor chosen;
    if (lora == nullptr) {
      mix_rows(block, w, rows.const_data_ptr<float>(), begin, end);
    } else {
      nn::Routing routing;
      routing.lora = lora;
      routing.chosen = &chosen;
      at::from_blob(w.x.data() + begin * c.hidden_size, rows.sizes(), at::kFloat)
          .add_(nn::mix_experts(c, decoder_.blocks()[layer], &decoder_.groups(layer), rows, routing));
    }
    const int64_t* expert = lora == nullptr ? w.chosen.data() : chosen.const_data_ptr<int64_t>();
    for (; begin < end; ++begin) {
      const auto [s, position] = w.rows[static_cast<size_t>(begin)];
      const Work& span = w.spans[static_cast<size_t>(s)];
      const int64_t at = position < span.prefix_length ? position : position - span.prefix_length;
      int16_t* const to = segment_at(span, position).routes.data() + at * cache_shape_.routed + block.routed;
      for (int64_t i = 0; i < c.experts_per_token; ++i) to[i] = static_cast<int16_t>(*expert++);
    }
  };
  for (const auto& [first, end, number] : w.adapted) {
    const auto at = static_cast<size_t>(number) - 1;
    if (at >= block.loras.size()) continue;
    const nn::ExpertLora& lora = block.loras[at];
    if (!lora.up.a.defined() && !lora.down.a.defined()) continue;
    run(first, nullptr);
    run(end, &lora);
  }
  run(static_cast<int64_t>(w.rows.size()), nullptr);
}

}  // namespace rlt::engine
