#include "engine/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

namespace rlt::engine {
namespace {

// Scores per block in the search for the k-th largest: the block's largest score bounds the others.
constexpr int64_t kMaxBlock = 64;
// The lowest temperature: kernels scale scores by 1/temperature in float32, which must not overflow.
constexpr double kColdest = 1 / static_cast<double>(std::numeric_limits<float>::max());

int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

// The first id whose score is the largest.
int64_t first_peak(const float* scores, int64_t n, float peak) {
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const int64_t end = std::min(n, i + kSumBlock);
    if (kernels().peak(scores + i, end - i) < peak) continue;
    return std::find(scores + i, scores + end, peak) - scores;
  }
  return n;
}

}  // namespace

uint64_t philox(uint64_t key, uint64_t high, uint32_t middle, uint32_t low) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c[4] = {low, middle, static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    std::copy(next, next + 4, c);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return uint64_t{c[1]} << 32 | c[0];
}

void SeenIds::reset(int64_t vocab_size) {
  seen_.assign(static_cast<size_t>(vocab_size), false);
  ids_.clear();
}

void SeenIds::add(int32_t id) {
  if (seen_[static_cast<size_t>(id)]) return;
  seen_[static_cast<size_t>(id)] = true;
  ids_.push_back(id);
}

Draw Sampler::draw(const float* logits, int64_t n, const rlt_sampling& asked, const SeenIds& seen,
                   const DrawKey& key) {
  const Kernels& kernel = kernels();
  rlt_sampling s = asked;
  if (s.temperature > 0) s.temperature = std::max(s.temperature, kColdest);
  weights_.reserve(n);
  sums_.reserve(blocks_of(n, kSumBlock));
  const float raw_peak = kernel.peak(logits, n);
  const bool penalised = s.repetition_penalty != 0 && s.repetition_penalty != 1;
  const bool filtered = s.top_k > 0 || (s.top_p > 0 && s.top_p < 1) || s.min_p > 0;
  const bool plain = s.temperature == 1 && !penalised && !filtered;
  const double raw_sum = plain ? kernel.exp_blocks(logits, n, raw_peak, 1, weights_.data(), sums_.data())
                               : kernel.sum_exp(logits, n, raw_peak);
  const double raw_log_sum = raw_peak + std::log(raw_sum);
  if (!std::isfinite(raw_log_sum)) return {kNotFinite, 0, 0};

  const float* scores = logits;
  float peak = raw_peak;
  if (penalised) {
    scores_.reserve(n);
    std::memcpy(scores_.data(), logits, static_cast<size_t>(n) * sizeof(float));
    const auto penalty = static_cast<float>(s.repetition_penalty);
    for (const int32_t id : seen.ids()) {
      float& score = scores_[id];
      score = score < 0 ? score * penalty : score / penalty;
    }
    scores = scores_.data();
    peak = kernel.peak(scores, n);
    if (!std::isfinite(peak)) return {kNotFinite, 0, 0};
  }

  Draw out{};
  if (s.temperature == 0) {
    out.token = static_cast<int32_t>(first_peak(scores, n, peak));
  } else {
    // 53 bits: a double in [0, 1).
    const double u =
        static_cast<double>(philox(key.seed, key.stream, key.sample, key.position) >> 11) * 0x1p-53;
    if (filtered) {
      out.token = draw_filtered(scores, n, s, peak, u, &out.logprob);
    } else {
      const auto factor = static_cast<float>(1 / s.temperature);
      const double total =
          plain ? raw_sum : kernel.exp_blocks(scores, n, peak, factor, weights_.data(), sums_.data());
      out.token = draw_all(n, total, u);
      if (out.token >= 0)
        out.logprob = static_cast<float>((scores[out.token] - peak) / s.temperature - std::log(total));
    }
    if (out.token < 0) return {kNotFinite, 0, 0};
  }
  out.raw = static_cast<float>(logits[out.token] - raw_log_sum);
  return out;
}

// Inverts the cumulative distribution in order of ids: first finds the block, then the id in it.
int32_t Sampler::draw_all(int64_t n, double total, double u) const {
  if (!std::isfinite(total)) return kNotFinite;
  const int64_t blocks = blocks_of(n, kSumBlock);
  double left = u * total;
  int64_t block = 0;
  while (block + 1 < blocks && left >= sums_[block]) left -= sums_[block++];
  // Rounding may leave nothing to find at the end: take the last token with a weight then. The most likely
  // token's weight is 1, so there is one.
  int64_t last = -1;
  const int64_t end = std::min(n, (block + 1) * kSumBlock);
  for (int64_t i = block * kSumBlock; i < end; ++i) {
    if (weights_[i] == 0) continue;
    last = i;
    left -= weights_[i];
    if (left < 0) break;
  }
  for (int64_t i = block * kSumBlock; last < 0 && i > 0; --i) {
    if (weights_[i - 1] > 0) last = i - 1;
  }
  return static_cast<int32_t>(last);
}

int32_t Sampler::draw_filtered(const float* scores, int64_t n, const rlt_sampling& s, float peak, double u,
                               float* logprob) {
  const double inverse = 1 / s.temperature;
  const auto weight_of = [&](int32_t id) {
    return static_cast<float>(std::exp((static_cast<double>(scores[id]) - peak) * inverse));
  };
  const bool top_p = s.top_p > 0 && s.top_p < 1;
  double total = 0;  // of all that top_p looks at
  kept_.clear();
  ids_.reserve(n);
  if (s.top_k > 0 && s.top_k < n) {
    keep_top_k(scores, n, s.top_k);
    for (Candidate& c : kept_) c.weight = weight_of(c.id);
    for (const Candidate& c : kept_) total += c.weight;
  } else {
    // Skips tokens that cannot be kept: those below min_p, or those whose weights together are below the
    // mass that top_p drops. The margin covers the rounding of exp and log.
    double bound = s.min_p;
    if (top_p) {
      total =
          kernels().exp_blocks(scores, n, peak, static_cast<float>(inverse), weights_.data(), sums_.data());
      bound = (1 - s.top_p) * total / static_cast<double>(n);
    }
    const auto lowest = static_cast<float>(peak + s.temperature * (std::log(bound) - 0.01));
    const int64_t count = kernels().at_least(scores, n, lowest, ids_.data());
    for (int64_t i = 0; i < count; ++i) kept_.push_back({ids_[i], weight_of(ids_[i])});
  }
  if (std::any_of(kept_.begin(), kept_.end(), [](const Candidate& c) { return std::isnan(c.weight); }))
    return kNotFinite;
  if (top_p) keep_top_p(s.top_p * total);
  if (s.min_p > 0) {
    const auto below = [&](const Candidate& c) { return c.weight < s.min_p; };
    kept_.erase(std::remove_if(kept_.begin(), kept_.end(), below), kept_.end());
  }
  total = 0;
  for (const Candidate& c : kept_) total += c.weight;
  double left = u * total;
  const Candidate* chosen = nullptr;
  for (const Candidate& c : kept_) {
    if (c.weight == 0) continue;
    chosen = &c;
    left -= c.weight;
    if (left < 0) break;
  }
  if (chosen == nullptr) return kNotFinite;
  *logprob = static_cast<float>((static_cast<double>(scores[chosen->id]) - peak) * inverse - std::log(total));
  return chosen->id;
}

// Keeps, in order of ids, the tokens whose score is at least the k-th largest.
void Sampler::keep_top_k(const float* scores, int64_t n, int64_t k) {
  const auto kth = [&] {
    std::nth_element(values_.begin(), values_.begin() + (k - 1), values_.end(), std::greater<float>());
    return values_[static_cast<size_t>(k - 1)];
  };
  // The k-th largest of the blocks' largest is at most the k-th largest of all, so scores below it need no
  // search.
  float bound = -std::numeric_limits<float>::infinity();
  if (blocks_of(n, kMaxBlock) >= k) {
    values_.clear();
    for (int64_t i = 0; i < n; i += kMaxBlock) {
      values_.push_back(kernels().peak(scores + i, std::min(kMaxBlock, n - i)));
    }
    bound = kth();
  }
  const int64_t count = kernels().at_least(scores, n, bound, ids_.data());
  values_.clear();
  for (int64_t i = 0; i < count; ++i) values_.push_back(scores[ids_[i]]);
  const float threshold = kth();
  for (int64_t i = 0; i < count; ++i) {
    if (scores[ids_[i]] >= threshold) kept_.push_back({ids_[i], 0});
  }
}

// Keeps the fewest of the most likely tokens whose weights reach need, at least one: a quickselect by weight.
void Sampler::keep_top_p(double need) {
  const auto above = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id > b.id;
  };
  auto begin = kept_.begin(), end = kept_.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, above);
    double mass = 0;
    for (auto c = begin; c != middle; ++c) mass += c->weight;
    if (mass >= need) {
      end = middle;
    } else {
      need -= mass;
      begin = middle;
    }
  }
  kept_.erase(end, kept_.end());
  std::sort(kept_.begin(), kept_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

}  // namespace rlt::engine
