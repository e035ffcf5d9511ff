// The sampler against distributions computed from the filters' definitions.
#include "engine/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "check.h"

namespace {

using rlt::engine::Draw;
using rlt::engine::Sampler;
using rlt::engine::SeenIds;

using Logits = std::vector<float>;

Logits random_logits(size_t n, double spread) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> draw(0, spread);
  Logits logits(n);
  for (float& x : logits) x = static_cast<float>(draw(engine));
  return logits;
}

std::vector<double> softmax(const std::vector<double>& scores) {
  const double peak = *std::max_element(scores.begin(), scores.end());
  std::vector<double> p;
  for (const double s : scores) p.push_back(std::exp(s - peak));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// Reference for each filter, as the logits processors of transformers define it: removed tokens get -inf.
std::vector<double> reference(const Logits& logits, const rlt_sampling& s, const std::vector<int32_t>& seen) {
  constexpr double kGone = -std::numeric_limits<double>::infinity();
  std::vector<double> x(logits.begin(), logits.end());
  for (size_t id = 0; id < x.size(); ++id) {
    if (s.repetition_penalty == 0 || std::find(seen.begin(), seen.end(), id) == seen.end()) continue;
    x[id] = x[id] < 0 ? x[id] * s.repetition_penalty : x[id] / s.repetition_penalty;
  }
  for (double& v : x) v /= s.temperature;
  if (s.top_k > 0 && s.top_k < static_cast<int64_t>(x.size())) {
    std::vector<double> sorted = x;
    std::sort(sorted.rbegin(), sorted.rend());
    const double kth = sorted[static_cast<size_t>(s.top_k - 1)];
    for (double& v : x) v = v < kth ? kGone : v;
  }
  if (s.top_p > 0 && s.top_p < 1) {
    const std::vector<double> p = softmax(x);
    std::vector<size_t> rising(x.size());
    std::iota(rising.begin(), rising.end(), size_t{0});
    std::stable_sort(rising.begin(), rising.end(), [&](size_t a, size_t b) { return x[a] < x[b]; });
    double sum = 0;
    for (size_t i = 0; i + 1 < rising.size(); ++i) {
      sum += p[rising[i]];
      if (sum <= 1 - s.top_p) x[rising[i]] = kGone;
    }
  }
  if (s.min_p > 0) {
    const std::vector<double> p = softmax(x);
    const double top = *std::max_element(p.begin(), p.end());
    for (size_t id = 0; id < x.size(); ++id) x[id] = p[id] < s.min_p * top ? kGone : x[id];
  }
  return softmax(x);
}

struct Setting {
  const char* name;
  rlt_sampling sampling;  // penalty, temperature, top_k, top_p, min_p
};

const Setting kSettings[] = {
    {"plain", {0, 1, 0, 0, 0}},
    {"temperature", {0, 0.6, 0, 1, 0}},
    {"hot", {1, 1.7, 0, 0, 0}},
    {"penalty", {1.4, 1, 0, 0, 0}},
    {"reward for repeating", {0.7, 1, 0, 0, 0}},
    {"top_k", {0, 1, 12, 0, 0}},
    {"top_k of all", {0, 1, 5000, 0, 0}},
    {"top_p", {0, 1, 0, 0.8, 0}},
    {"top_p next to nothing", {0, 1, 0, 1e-9, 0}},
    {"min_p", {0, 1, 0, 0, 0.05}},
    {"top_k and top_p", {0, 1.3, 40, 0.9, 0}},
    {"all", {1.2, 0.8, 60, 0.95, 0.02}},
    {"top_p and min_p", {0, 1.1, 0, 0.97, 0.01}},
};

TEST(sampler_draws_from_the_exact_distribution) {
  constexpr int kDraws = 100000;
  Logits logits = random_logits(300, 2);
  logits[17] = logits[250] = logits[40];  // ties
  const std::vector<int32_t> met{3, 40, 41, 299, 3};
  SeenIds seen;
  seen.reset(300);
  for (const int32_t id : met) seen.add(id);
  Sampler sampler;
  for (const Setting& setting : kSettings) {
    const std::vector<double> want = reference(logits, setting.sampling, met);
    const std::vector<double> raw = reference(logits, {0, 1, 0, 0, 0}, {});
    std::vector<int> counts(logits.size());
    double worst = 0;
    for (uint32_t i = 0; i < kDraws; ++i) {
      const Draw draw = sampler.draw(logits.data(), 300, setting.sampling, seen, {9, 4, i, i % 7});
      const auto id = static_cast<size_t>(draw.token);
      ++counts[id];
      if (i % 16 != 0) continue;
      worst = std::max(worst, std::abs(draw.logprob - std::log(want[id])));
      worst = std::max(worst, std::abs(draw.raw - std::log(raw[id])));
    }
    EXPECT_AT_MOST(worst, 2e-6, setting.name);
    // Ids with fewer than ten expected samples form one bin.
    double chi = 0, rare = 0;
    int freedom = -1, rare_count = 0;
    for (size_t id = 0; id < want.size(); ++id) {
      const double expected = want[id] * kDraws;
      EXPECT(want[id] > 0 || counts[id] == 0);
      if (expected < 10) {
        rare += expected;
        rare_count += counts[id];
        continue;
      }
      chi += (counts[id] - expected) * (counts[id] - expected) / expected;
      ++freedom;
    }
    if (rare > 0) {
      chi += (rare_count - rare) * (rare_count - rare) / std::max(rare, 1.0);
      ++freedom;
    }
    // Mean of the chi-square plus five standard deviations.
    EXPECT_AT_MOST(chi, freedom + 5 * std::sqrt(2.0 * std::max(freedom, 1)), setting.name);
  }
}

// Large vocabularies, in which most tokens fall below the cutoff or all are almost equal.
TEST(sampler_filters_large_vocabularies) {
  for (const double spread : {0.0, 0.01, 1.0, 6.0}) {
    Logits logits = random_logits(20011, spread);
    Sampler sampler;
    for (const Setting& setting : kSettings) {
      const std::vector<double> want = reference(logits, setting.sampling, {});
      for (uint32_t i = 0; i < 20; ++i) {
        const Draw draw = sampler.draw(logits.data(), 20011, setting.sampling, SeenIds(), {1, 2, i, 0});
        EXPECT_AT_MOST(std::abs(draw.logprob - std::log(want[static_cast<size_t>(draw.token)])), 2e-5,
                       setting.name);
      }
    }
  }
}

TEST(sampler_greedy) {
  Sampler sampler;
  SeenIds seen;
  seen.reset(600);
  Logits logits(600, -1.0f);
  const rlt_sampling greedy{0, 0, 3, 0.1, 0.5}, penalised{2, 0, 0, 0, 0};
  EXPECT_EQUAL(sampler.draw(logits.data(), 600, greedy, seen, {}).token, 0);  // the lowest id among equals
  logits[301] = logits[580] = 2;
  const Draw draw = sampler.draw(logits.data(), 600, greedy, seen, {});
  EXPECT_EQUAL(draw.token, 301);
  EXPECT_EQUAL(draw.logprob, 0.0f);
  const double sum = 2 * std::exp(2.0) + 598 * std::exp(-1.0);
  EXPECT_AT_MOST(std::abs(draw.raw - (2 - std::log(sum))), 1e-6, "raw");
  seen.add(301);
  const Draw other = sampler.draw(logits.data(), 600, penalised, seen, {});
  EXPECT_EQUAL(other.token, 580);
  EXPECT_AT_MOST(std::abs(other.raw - (2 - std::log(sum))), 1e-6, "raw");
}

TEST(sampler_refuses_what_is_not_finite) {
  Sampler sampler;
  for (const float bad : {NAN, INFINITY}) {
    Logits logits(300, 0.5f);
    logits[123] = bad;
    EXPECT_EQUAL(sampler.draw(logits.data(), 300, {0, 1, 0, 0, 0}, SeenIds(), {}).token,
                 int32_t{rlt::engine::kNotFinite});
  }
  Logits none(300, -INFINITY);
  EXPECT_EQUAL(sampler.draw(none.data(), 300, {0, 1, 0, 0, 0}, SeenIds(), {}).token,
               int32_t{rlt::engine::kNotFinite});
  none[7] = 0;  // the only token that can be sampled
  EXPECT_EQUAL(sampler.draw(none.data(), 300, {0, 1, 0, 0, 0}, SeenIds(), {}).token, 7);
}

// Every parameter combination that the engine accepts gives a token of the vocabulary or kNotFinite, for
// ordinary, equal, extreme and non-finite logits.
TEST(sampler_survives_every_parameter) {
  constexpr double kTiny = 5e-324, kLow = 2.9e-39, kHigh = 1e308, kAlmost = 1 - 0x1p-53;
  constexpr float kInf = std::numeric_limits<float>::infinity(), kMax = std::numeric_limits<float>::max();
  constexpr int64_t n = 700;
  std::vector<Logits> rows{random_logits(n, 2), random_logits(n, 1e-30), Logits(n, 0.25f), Logits(n, -kMax)};
  for (const float odd : {kInf, -kInf, NAN, kMax, -kMax, 1e-45f, 0.0f}) {
    for (const size_t at : {size_t{0}, size_t{17}, size_t{255}, size_t{256}, size_t{699}}) {
      rows.push_back(random_logits(n, 2));
      rows.back()[at] = odd;
    }
    rows.emplace_back(n, odd);
  }
  SeenIds seen;
  seen.reset(n);
  for (const int32_t id : {0, 17, 255, 699}) seen.add(id);
  Sampler sampler;
  int64_t bad = 0;
  for (const Logits& row : rows) {
    for (const double temperature : {0.0, kTiny, 1e-300, kLow, 3e-39, 1e-38, 1e-3, 1.0, 1e30, 1e39, kHigh}) {
      for (const double penalty : {0.0, kTiny, 1e-46, 1e-30, 1.0, 1.3, 1e39, kHigh}) {
        for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{64}, n - 1, n, INT64_MAX}) {
          for (const auto& [top_p, min_p] : {std::pair<double, double>{0, 0},
                                             {kTiny, 0},
                                             {kAlmost, kTiny},
                                             {0.9, 0.1},
                                             {1, 1},
                                             {0, kAlmost},
                                             {0.5, 1}}) {
            const rlt_sampling s{penalty, temperature, top_k, top_p, min_p};
            const Draw draw = sampler.draw(row.data(), n, s, seen, {3, 1, 4, 1});
            const bool token = draw.token >= 0 && draw.token < n && !std::isnan(draw.logprob);
            bad += !token && draw.token != int32_t{rlt::engine::kNotFinite};
          }
        }
      }
    }
  }
  EXPECT_EQUAL(bad, 0);
}

// Temperatures near 0 act as greedy sampling: the token gets a log-probability of 0.
TEST(sampler_of_next_to_no_temperature_is_greedy) {
  Logits logits = random_logits(300, 2);
  logits[41] = 9;
  Sampler sampler;
  for (const double temperature : {5e-324, 1e-300, 2.9e-39, 1e-30}) {
    for (const Setting& setting : kSettings) {
      rlt_sampling s = setting.sampling;
      s.temperature = temperature;
      const Draw draw = sampler.draw(logits.data(), 300, s, SeenIds(), {1, 2, 3, 4});
      EXPECT_EQUAL(draw.token, 41);
      EXPECT_EQUAL(draw.logprob, 0.0f);
    }
  }
}

// Known answers from Random123, the reference implementation.
TEST(philox_known_answers) {
  using rlt::engine::philox;
  EXPECT_EQUAL(philox(0, 0, 0, 0), 0xe169c58d6627e8d5U);
  EXPECT_EQUAL(philox(~0UL, ~0UL, ~0U, ~0U), 0x41c83b0e408f276dU);
  EXPECT_EQUAL(philox(0x299f31d0a4093822U, 0x0370734413198a2eU, 0x85a308d3U, 0x243f6a88U),
               0x94fdccebd16cfe09U);
}

}  // namespace
