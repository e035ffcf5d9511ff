// Layers that mix tokens without attention: each sees the last tokens of its sequence, of this pass or of the
// cache, and with a delta rule a state that all earlier ones have written.
#include <cmath>

#include "engine/cpu/network.h"
#include "kernels/parallel.h"
#include "nn/block.h"

namespace rlt::engine {
namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// x of length 1.
void to_unit(const float* x, float scale, float* y, int64_t n) {
  float squares = 1e-6F;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float factor = scale / std::sqrt(squares);
  for (int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
}

}  // namespace

template <class In, class Out>
void Network::apply_taps(const Block& block, int64_t layer, Workspace& w, int64_t channels, const In& in,
                         const Out& out) const {
  const int64_t before = static_cast<int64_t>(block.conv.weight.size()) / channels - 1;
  const float* const bias = block.conv.bias.empty() ? nullptr : block.conv.bias.data();
  parallel_for(0, channels, grain(8 * static_cast<int64_t>(w.rows.size())), [&](int64_t begin, int64_t end) {
    std::vector<const float*> past(static_cast<size_t>(before));
    for (size_t i = 0; i < w.rows.size(); ++i) {
      const auto row = static_cast<int64_t>(i), position = w.rows[i].position;
      const Work& span = w.spans[static_cast<size_t>(w.rows[i].span)];
      // A position takes the place of the one that is not seen any more.
      const auto recent = [&](int64_t at) {
        return segment_at(span, at).recent(layer) + at % before * channels;
      };
      const int64_t seen = std::min(before, position);
      for (int64_t lag = 1; lag <= seen; ++lag) past[static_cast<size_t>(lag - 1)] = recent(position - lag);
      float* const own = recent(position);
      for (int64_t j = begin; j < end; ++j) {
        const float* const last = block.conv.weight.data() + j * (before + 1) + before;
        const float now = in(row, j);
        float sum = *last * now;
        for (int64_t lag = 1; lag <= seen; ++lag) sum += last[-lag] * past[static_cast<size_t>(lag - 1)][j];
        own[j] = now;
        out(row, j, bias == nullptr ? sum : sum + bias[j]);
      }
    }
  });
}

void Network::convolve(const Block& block, int64_t layer, Workspace& w) const {
  const int64_t n = config().hidden_size, width = block.qkv.width();
  const float* const parts = w.qkv.data();
  apply_taps(
      block, layer, w, n,
      [&](int64_t row, int64_t j) { return parts[row * width + j] * parts[row * width + 2 * n + j]; },
      [&](int64_t row, int64_t j, float sum) {
        w.attended.data()[row * n + j] = parts[row * width + n + j] * sum;
      });
}

// As nn::delta_rule, a token at a time. State [k, v] of each value head follows the layer's last tokens.
void Network::delta_rule(const Block& block, int64_t layer, Workspace& w) const {
  const auto v = static_cast<int64_t>(block.delta.weight.size()),
             values = static_cast<int64_t>(block.decay.weight.size());
  const int64_t heads = config().delta_key_heads, taken = block.o.in(), width = block.qkv.width(),
                channels = decoder_.blocks()[static_cast<size_t>(layer)].qkv.out(),
                k = nn::delta_key_width(config(), decoder_.blocks()[static_cast<size_t>(layer)]),
                kept_words = static_cast<int64_t>(block.conv.weight.size()) - channels;
  float* const all = w.qkv.data();
  apply_taps(
      block, layer, w, channels, [&](int64_t row, int64_t j) { return all[row * width + j]; },
      [&](int64_t row, int64_t j, float sum) { all[row * width + j] = sum * sigmoid(sum); });
  parallel_for(0, values, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(static_cast<size_t>(2 * k + v));
    float *const query = buffer.data(), *const key = query + k, *const write = key + k;
    for (int64_t h = begin; h < end; ++h) {
      for (size_t i = 0; i < w.rows.size(); ++i) {
        const int64_t position = w.rows[i].position;
        const Work& span = w.spans[static_cast<size_t>(w.rows[i].span)];
        const auto state_at = [&](int64_t at) {
          return segment_at(span, at).recent(layer) + kept_words + h * k * v;
        };
        float* const state = state_at(position);
        if (position == 0) {
          std::fill_n(state, k * v, 0.0F);
        } else if (position == span.prefix_length) {
          std::copy_n(state_at(position - 1), k * v, state);
        }
        const float* const row = all + static_cast<int64_t>(i) * width;
        const int64_t shared = h / (values / heads);
        to_unit(row + shared * k, 1 / std::sqrt(static_cast<float>(k)), query, k);
        to_unit(row + (heads + shared) * k, 1, key, k);
        const float* const value = row + 2 * heads * k + h * v;
        const auto at = static_cast<size_t>(h);
        const float x = row[block.decays + h] + block.decay.bias[at],
                    fade =
                        std::exp(-std::exp(block.decay.weight[at]) * (x > 20 ? x : std::log1p(std::exp(x)))),
                    rate = sigmoid(row[block.rate + h]);
        std::fill_n(write, v, 0.0F);
        for (int64_t a = 0; a < k; ++a) {
          for (int64_t b = 0; b < v; ++b) write[b] += (state[a * v + b] *= fade) * key[a];
        }
        for (int64_t b = 0; b < v; ++b) write[b] = (value[b] - write[b]) * rate;
        float* const out = w.attended.data() + static_cast<int64_t>(i) * taken + h * v;
        std::fill_n(out, v, 0.0F);
        for (int64_t a = 0; a < k; ++a) {
          for (int64_t b = 0; b < v; ++b) out[b] += (state[a * v + b] += key[a] * write[b]) * query[a];
        }
        kernels().rms_norm(out, block.delta.weight.data(), 0, out, v, static_cast<float>(config().norm_eps));
        const float* const z = row + block.z + h * v;
        for (int64_t b = 0; b < v; ++b) out[b] *= z[b] * sigmoid(z[b]);
      }
    }
  });
}

}  // namespace rlt::engine
