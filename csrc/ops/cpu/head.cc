// Logits live only as tiles of tokens × vocabulary that stay in cache: a tile is a product, a pass of
// exponentials over it, and where a gradient is wanted a second product. Memory does not grow with the
// vocabulary. Each task has a block of tokens and a share of the vocabulary, on one thread.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "kernels/parallel.h"
#include "kernels/tiles.h"
#include "ops/cpu/bf16.h"
#include "ops/head.h"
#include "ops/widen.h"

namespace rlt {
namespace {

constexpr int64_t kWeights = int64_t{1} << 19;   // of a tile, at most where it is wider than kNarrow
constexpr int64_t kNarrow = 32, kWide = 128;     // columns of a tile
constexpr int64_t kPartials = int64_t{1} << 23;  // floats of partial results at most

// Tokens of a tile, at most: as many logits as the second-level cache holds, so that weights are packed for
// few blocks of tokens.
int64_t most_tokens() { return std::clamp<int64_t>(panels_in_cache(4 * kWide, 1), 512, 1024); }

// How a product of hidden state and output weight becomes a logit: z = softcap · tanh((x + b)/softcap)/T,
// without the tanh where softcap is 0.
struct LogitMap {
  float temperature, softcap;

  // dz/dx = (1 - curvature · z²)/T
  float curvature() const { return softcap > 0 ? temperature / softcap * (temperature / softcap) : 0; }
  float slope(float z) const {
    return softcap > 0 ? (1 - curvature() * z * z) / temperature : 1 / temperature;
  }
  // Replaces x by its logits; bias [n] may be null.
  void apply(float* x, const float* bias, int64_t n) const {
    if (bias != nullptr) kernels().add_scaled(1, bias, x, n);
    if (softcap > 0) {
      kernels().softcap(x, n, 1 / softcap, softcap / temperature);
    } else if (temperature != 1) {
      kernels().scale(x, 1 / temperature, x, n);
    }
  }
};

// A softmax whose logits come piece by piece (Milakov & Gimelshein 2018).
struct OnlineSoftmax {
  float peak = -3.402823466e38f;  // not -∞: -∞ - peak must not be NaN
  double sum = 0;                 // Σ exp(z - peak)
  double weighted = 0;            // Σ exp(z - peak) (z - peak)
  int64_t above = 0;              // how many z exceed the threshold

  // Raises the peak and returns the factor, at most 1, by which the exponentials so far shrink.
  double shrink(float to) {
    const double fall = static_cast<double>(peak) - to, factor = std::exp(fall);
    weighted = factor > 0 ? factor * (weighted + sum * fall) : 0;
    sum *= factor;
    peak = to;
    return factor;
  }
  // Takes the logits z in and replaces them by exp(z - peak) (1 - curvature · z²). Returns the factor by
  // which those of earlier pieces shrink, 1 unless the peak rose.
  float add(float* z, int64_t n, float threshold, const LogitMap& map) {
    const float top = kernels().peak(z, n);
    const auto factor = static_cast<float>(top > peak ? shrink(top) : 1);
    const Moments m = kernels().moments(z, n, peak, threshold, map.curvature());
    sum += m.sum;
    weighted += m.weighted;
    above += m.above;
    return factor;
  }
};

struct Head {
  at::Tensor hidden;   // keeps a dense copy alive
  at::Tensor rounded;  // the same as bfloat16, where products are; else undefined
  const at::Tensor& weight;
  const float *h, *bias;
  const int64_t* targets;
  LogitMap map;
  int64_t tokens, width, vocab;
  int64_t columns;  // of a tile

  Head(const at::Tensor& hidden_any, const at::Tensor& w, const OptionalTensor& b, const at::Tensor& ids,
       double temperature, double softcap)
      : weight(w) {
    TORCH_CHECK(hidden_any.dim() == 2 && w.dim() == 2 && hidden_any.size(1) == w.size(1) && w.size(0) > 0 &&
                    w.size(1) > 0 && (!b || (b->dim() == 1 && b->size(0) == w.size(0))),
                "token_logprobs: hidden ", hidden_any.sizes(), ", weight ", w.sizes(),
                " and the bias do not fit");
    TORCH_CHECK(hidden_any.scalar_type() == at::kFloat && (!b || b->scalar_type() == at::kFloat),
                "token_logprobs: hidden and bias must be float32");
    check_weight("token_logprobs", w);
    TORCH_CHECK(w.is_contiguous() && (!b || b->is_contiguous()),
                "token_logprobs: weight and bias must be dense");
    TORCH_CHECK(ids.scalar_type() == at::kLong && ids.dim() == 1 && ids.size(0) == hidden_any.size(0) &&
                    ids.is_contiguous(),
                "token_logprobs: targets must be ", hidden_any.size(0), " dense int64 values, got ",
                ids.scalar_type(), " ", ids.sizes());
    TORCH_CHECK(std::isfinite(temperature) && temperature > 0 && std::isfinite(softcap) && softcap >= 0,
                "token_logprobs: temperature ", temperature, " must be positive and softcap ", softcap,
                " not negative");
    hidden = hidden_any.contiguous();
    if (multiplies_bf16(w)) {
      rounded = rounded_rows(hidden);
      hidden = rounded.narrow(1, 0, w.size(1)).to(at::kFloat).contiguous();
    }
    h = hidden.const_data_ptr<float>();
    bias = b ? b->const_data_ptr<float>() : nullptr;
    targets = ids.const_data_ptr<int64_t>();
    map = {static_cast<float>(temperature), static_cast<float>(softcap)};
    tokens = hidden.size(0), width = hidden.size(1), vocab = w.size(0);
    columns = std::clamp(kWeights / width, kNarrow, kWide);
    for (int64_t i = 0; i < tokens; ++i) {
      TORCH_CHECK(targets[i] >= 0 && targets[i] < vocab, "token_logprobs: target ", targets[i],
                  " at position ", i, " is outside of the vocabulary of ", vocab);
    }
  }

  int64_t tiles() const { return (vocab + columns - 1) / columns; }
};

// A thread's memory for one tile.
struct Scratch {
  at::Tensor buffer;
  float *logits, *weights;

  Scratch(const Head& head, int64_t rows)
      : buffer(at::empty({rows * head.columns + room_for_weights(head, rows)}, at::kFloat)),
        logits(buffer.mutable_data_ptr<float>()),
        weights(logits + rows * head.columns) {}

  // Of weights that are widened, or of logits that are rounded.
  static int64_t room_for_weights(const Head& head, int64_t rows) {
    if (head.rounded.defined()) return rows * words_of(head.columns);
    return head.weight.scalar_type() == at::kFloat ? 0 : head.columns * head.width;
  }
};

struct LogitTile {
  int64_t row, rows, column, columns;
  const float* w;    // [columns, width]; null where products are of bfloat16
  float* z;          // [rows, columns] logits
  uint16_t* halves;  // room for them as bfloat16

  bool holds(int64_t target) const { return target >= column && target < column + columns; }
};

LogitTile make_tile(const Head& head, int64_t row, int64_t rows, int64_t number, const Scratch& scratch) {
  LogitTile t{row, rows, number * head.columns, 0, nullptr, scratch.logits, nullptr};
  t.columns = std::min(head.columns, head.vocab - t.column);
  const int64_t n = t.columns, k = head.width;
  if (head.rounded.defined()) {
    t.halves = reinterpret_cast<uint16_t*>(scratch.weights);
    gemm_pairs('T', rows, n, k, rows_of_bf16(head.rounded, row), rows_of_bf16(head.weight, t.column), t.z, n);
  } else {
    t.w = float_rows(head.weight, t.column, t.columns, scratch.weights);
    gemm('N', 'T', rows, n, k, {head.h + row * k, k}, {t.w, k}, t.z, n);
  }
  for (int64_t i = 0; i < rows; ++i) {
    head.map.apply(t.z + i * t.columns, head.bias == nullptr ? nullptr : head.bias + t.column, t.columns);
  }
  return t;
}

// Blocks of tokens × shares of the vocabulary. Few tokens leave the vocabulary to be shared.
struct Plan {
  int64_t rows, blocks, shares;

  explicit Plan(const Head& head) {
    const int64_t threads = thread_count();
    blocks = (head.tokens + most_tokens() - 1) / most_tokens();
    if (blocks < threads) {
      blocks = std::clamp<int64_t>(head.tokens / 128, 1, threads);
    } else {
      blocks = (blocks + threads - 1) / threads * threads;
    }
    rows = (head.tokens + blocks - 1) / blocks;
    blocks = (head.tokens + rows - 1) / rows;
    const int64_t room = 1 + kPartials / (head.tokens * head.width);
    shares = std::min({(threads + blocks - 1) / blocks, head.tiles(), room});
  }
};

// Calls body(share, tile, whether it is its rows' first in this share) for every tile.
template <typename Body>
void for_each_tile(const Head& head, const Plan& plan, const Body& body) {
  parallel_for(0, plan.blocks * plan.shares, 1, [&](int64_t begin, int64_t end) {
    const Scratch scratch(head, plan.rows);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t share = task % plan.shares, row = task / plan.shares * plan.rows;
      const int64_t rows = std::min(plan.rows, head.tokens - row);
      const int64_t first = head.tiles() * share / plan.shares,
                    last = head.tiles() * (share + 1) / plan.shares;
      for (int64_t number = first; number < last; ++number) {
        body(share, make_tile(head, row, rows, number, scratch), number == first);
      }
    }
  });
}

// out += z w, or = where this is the first.
void add_product(const Head& head, const LogitTile& t, float* out, bool first) {
  const int64_t m = t.rows, k = t.columns, n = head.width;
  if (!head.rounded.defined()) return gemm('N', 'N', m, n, k, {t.z, k}, {t.w, n}, out + t.row * n, n, !first);
  round_rows(m, k, {t.z, k}, t.halves);
  gemm_pairs('N', m, n, k, {t.halves, 2 * words_of(k)}, rows_of_bf16(head.weight, t.column), out + t.row * n,
             n, !first);
}

// The logit of each target by a product of its own: the threshold of its rank.
std::vector<float> target_logits(const Head& head) {
  std::vector<float> z(static_cast<size_t>(head.tokens));
  parallel_for(0, head.tokens, grain(head.width), [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(head.width));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t target = head.targets[i];
      z[i] = kernels().dot(head.h + i * head.width, float_rows(head.weight, target, 1, scratch.data()),
                           head.width);
      head.map.apply(&z[i], head.bias == nullptr ? nullptr : head.bias + target, 1);
    }
  });
  return z;
}

// Where share 0's partial results are, and those of the others.
struct Partials {
  at::Tensor own, others;

  Partials(const Head& head, const Plan& plan)
      : own(at::empty({head.tokens, head.width}, at::kFloat)),
        others(at::empty({plan.shares - 1, head.tokens, head.width}, at::kFloat)) {}

  float* of(int64_t share) const {
    return share == 0 ? own.mutable_data_ptr<float>()
                      : others.mutable_data_ptr<float>() + (share - 1) * own.numel();
  }
};

// The softmax of token i over all shares; its partial slopes are summed at share 0.
OnlineSoftmax merge_shares(const Head& head, const Plan& plan, const std::vector<OnlineSoftmax>& states,
                           int64_t i, const Partials* slope) {
  OnlineSoftmax all = states[i];
  for (int64_t share = 1; share < plan.shares; ++share) {
    const OnlineSoftmax& s = states[share * head.tokens + i];
    const float peak = std::max(all.peak, s.peak);
    const double f = all.shrink(peak);
    OnlineSoftmax other = s;
    const double g = other.shrink(peak);
    all.sum += other.sum;
    all.weighted += other.weighted;
    all.above += other.above;
    if (slope != nullptr) {
      float* row = slope->of(0) + i * head.width;
      kernels().scale(row, static_cast<float>(f), row, head.width);
      kernels().add_scaled(static_cast<float>(g), slope->of(share) + i * head.width, row, head.width);
    }
  }
  return all;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> token_logprobs_cpu(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias, const at::Tensor& targets,
    double temperature, double softcap, bool with_slope) {
  const Head head(hidden, weight, bias, targets, temperature, softcap);
  at::Tensor logprobs = at::empty({head.tokens}, at::kFloat), entropy = at::empty({head.tokens}, at::kFloat);
  at::Tensor lse = at::empty({head.tokens}, at::kFloat), rank = at::empty({head.tokens}, at::kLong);
  if (head.tokens == 0) {
    return {logprobs, entropy, rank, lse, at::empty({0, with_slope ? head.width : 0}, at::kFloat)};
  }
  const Plan plan(head);
  const std::optional<Partials> slope =
      with_slope ? std::optional<Partials>(Partials(head, plan)) : std::nullopt;
  const std::vector<float> thresholds = target_logits(head);
  std::vector<float> target = thresholds;
  std::vector<OnlineSoftmax> states(static_cast<size_t>(plan.shares * head.tokens));
  for_each_tile(head, plan, [&](int64_t share, const LogitTile& t, bool first) {
    for (int64_t i = t.row; i < t.row + t.rows; ++i) {
      float* z = t.z + (i - t.row) * t.columns;
      OnlineSoftmax& s = states[share * head.tokens + i];
      if (t.holds(head.targets[i])) {
        target[i] = z[head.targets[i] - t.column];
        s.above -= target[i] > thresholds[i];
      }
      const float shrink = s.add(z, t.columns, thresholds[i], head.map);
      if (with_slope && shrink != 1 && !first) {
        float* row = slope->of(share) + i * head.width;
        kernels().scale(row, shrink, row, head.width);
      }
    }
    if (with_slope) add_product(head, t, slope->of(share), first);
  });

  parallel_for(0, head.tokens, grain(head.width), [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(head.width));
    for (int64_t i = begin; i < end; ++i) {
      const OnlineSoftmax s = merge_shares(head, plan, states, i, slope ? &*slope : nullptr);
      const double log_sum = std::log(s.sum);
      lse.mutable_data_ptr<float>()[i] = static_cast<float>(s.peak + log_sum);
      logprobs.mutable_data_ptr<float>()[i] =
          static_cast<float>(static_cast<double>(target[i]) - s.peak - log_sum);
      const double h = log_sum - s.weighted / s.sum;
      entropy.mutable_data_ptr<float>()[i] = static_cast<float>(h < 0 ? 0 : h);  // NaN stays
      rank.mutable_data_ptr<int64_t>()[i] = s.above;
      if (slope) {
        float* row = slope->of(0) + i * head.width;
        kernels().scale(row, static_cast<float>(-1 / (s.sum * head.map.temperature)), row, head.width);
        kernels().add_scaled(head.map.slope(target[i]),
                             float_rows(weight, head.targets[i], 1, scratch.data()), row, head.width);
      }
    }
  });
  return {logprobs, entropy, rank, lse, slope ? slope->own : at::empty({0}, at::kFloat)};
}

// What logits' gradients follow from.
struct RowGrads {
  const float *logprob, *entropy_grad, *entropy, *lse;

  RowGrads(const Head& head, const at::Tensor& grad_logprobs, const at::Tensor& grad_entropy,
           const at::Tensor& entropies, const at::Tensor& lses) {
    for (const at::Tensor& t : {grad_logprobs, grad_entropy, entropies, lses}) {
      TORCH_CHECK(
          t.dim() == 1 && t.size(0) == head.tokens && t.scalar_type() == at::kFloat && t.is_contiguous(),
          "token_logprobs: gradients, entropy and lse must be ", head.tokens, " dense float32 values, got ",
          t.scalar_type(), " ", t.sizes());
    }
    logprob = grad_logprobs.const_data_ptr<float>(), entropy_grad = grad_entropy.const_data_ptr<float>();
    entropy = entropies.const_data_ptr<float>(), lse = lses.const_data_ptr<float>();
  }

  // Replaces the tile's logits by the loss's derivatives by h wᵀ + b.
  void into(const Head& head, const LogitTile& t) const {
    for (int64_t i = t.row; i < t.row + t.rows; ++i) {
      float* z = t.z + (i - t.row) * t.columns;
      const int64_t at = head.targets[i] - t.column;
      const float own = t.holds(head.targets[i]) ? logprob[i] * head.map.slope(z[at]) : 0;
      kernels().logits_backward(z, t.columns, lse[i], entropy[i], logprob[i], entropy_grad[i],
                                1 / head.map.temperature, head.map.curvature());
      if (t.holds(head.targets[i])) z[at] += own;
    }
  }
};

at::Tensor hidden_grad_cpu(const at::Tensor& grad_logprobs, const at::Tensor& grad_entropy,
                           const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias,
                           const at::Tensor& targets, const at::Tensor& entropy, const at::Tensor& lse,
                           double temperature, double softcap) {
  const Head head(hidden, weight, bias, targets, temperature, softcap);
  const RowGrads grads(head, grad_logprobs, grad_entropy, entropy, lse);
  if (head.tokens == 0) return at::empty({0, head.width}, at::kFloat);
  const Plan plan(head);
  const Partials sums(head, plan);
  for_each_tile(head, plan, [&](int64_t share, const LogitTile& t, bool first) {
    grads.into(head, t);
    add_product(head, t, sums.of(share), first);
  });
  for (int64_t share = 1; share < plan.shares; ++share) sums.own.add_(sums.others.select(0, share - 1));
  return sums.own;
}

// Parallel over the vocabulary, so that every row of the result has one writer.
std::tuple<at::Tensor, at::Tensor> weight_grad_cpu(const at::Tensor& grad_logprobs,
                                                   const at::Tensor& grad_entropy, const at::Tensor& hidden,
                                                   const at::Tensor& weight, const OptionalTensor& bias,
                                                   const at::Tensor& targets, const at::Tensor& entropy,
                                                   const at::Tensor& lse, double temperature,
                                                   double softcap) {
  const Head head(hidden, weight, bias, targets, temperature, softcap);
  const RowGrads grads(head, grad_logprobs, grad_entropy, entropy, lse);
  at::Tensor grad_weight = at::empty({head.vocab, head.width}, at::kFloat);
  at::Tensor grad_bias = at::zeros({head.vocab}, at::kFloat);
  if (head.tokens == 0) return {grad_weight.zero_(), grad_bias};
  const int64_t rows = std::min(most_tokens(), head.tokens);
  parallel_for(0, head.tiles(), 1, [&](int64_t begin, int64_t end) {
    const Scratch scratch(head, rows);
    for (int64_t number = begin; number < end; ++number) {
      for (int64_t row = 0; row < head.tokens; row += rows) {
        const LogitTile t = make_tile(head, row, std::min(rows, head.tokens - row), number, scratch);
        grads.into(head, t);
        const int64_t m = t.columns, n = head.width;
        gemm('T', 'N', m, n, t.rows, {t.z, m}, {head.h + row * n, n},
             grad_weight.mutable_data_ptr<float>() + t.column * n, n, row > 0);
        float* sums = grad_bias.mutable_data_ptr<float>() + t.column;
        for (int64_t i = 0; i < t.rows; ++i) kernels().add_scaled(1, t.z + i * t.columns, sums, t.columns);
      }
    }
  });
  return {grad_weight, grad_bias};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CPU, m) {
  m.impl("token_logprobs", &rlt::token_logprobs_cpu);
  m.impl("token_logprobs_hidden_grad", &rlt::hidden_grad_cpu);
  m.impl("token_logprobs_weight_grad", &rlt::weight_grad_cpu);
}
