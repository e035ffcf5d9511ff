// Sampling on a device, against the CPU's sampler (which has its own tests) and against the definitions of
// the filters.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <map>
#include <string>

#include "check.h"
#include "cuda/kernels/stream.h"
#include "cuda_pages.h"
#include "engine/cpu/sampler.h"

namespace {

using namespace rlt;
using rlt::test::as;
using rlt::test::bytes_of;
using rlt::test::device;
using rlt::test::Random;

struct Setting {
  const char* name;
  rlt_sampling sampling;  // penalty, temperature, top_k, top_p, min_p
};

const std::vector<Setting> kSettings{
    {"plain", {0, 1, 0, 0, 0}},
    {"temperature", {0, 0.6, 0, 1, 0}},
    {"hot", {1, 1.7, 0, 0, 0}},
    {"nearly greedy", {0, 0.05, 0, 0, 0}},
    {"greedy", {0, 0, 3, 0.1, 0.5}},
    {"greedy and penalty", {1.3, 0, 0, 0, 0}},
    {"penalty", {1.4, 1, 0, 0, 0}},
    {"reward for repeating", {0.7, 1, 0, 0, 0}},
    {"top_k", {0, 1, 12, 0, 0}},
    {"top_k of one", {0, 1, 1, 0, 0}},
    {"top_k of many", {0, 1, 1500, 0, 0}},
    {"top_k of all", {0, 1, 1 << 30, 0, 0}},
    {"top_p", {0, 1, 0, 0.8, 0}},
    {"top_p next to nothing", {0, 1, 0, 1e-9, 0}},
    {"top_p next to all", {0, 1, 0, 0.9999, 0}},
    {"min_p", {0, 1, 0, 0, 0.05}},
    {"top_k and top_p", {0, 1.3, 40, 0.9, 0}},
    {"all", {1.2, 0.8, 60, 0.95, 0.02}},
    {"top_p and min_p", {0, 1.1, 0, 0.97, 0.01}},
};

// Rows of logits with the ids seen so far, and the samples to take from them.
struct Batch {
  int64_t vocab, stride;
  at::Tensor logits;  // [rows, stride]
  std::vector<int32_t> seen;
  std::vector<cuda::PickRow> picks;
  double softcap = 0;

  Batch(int64_t rows, int64_t n, double spread, Random& random)
      : vocab(n), stride(n + 5), logits(random.normal({rows, n + 5}, spread)) {}

  float* row(int64_t i) { return logits.mutable_data_ptr<float>() + i * stride; }

  void add(const rlt_sampling& s, int32_t of, uint32_t sample, const std::vector<int32_t>& met = {}) {
    picks.push_back({s.repetition_penalty, s.temperature, s.top_p, s.min_p, s.top_k, 9, 1ULL << 40, sample,
                     sample % 7, of, static_cast<int32_t>(seen.size()), static_cast<int32_t>(met.size()), 0});
    seen.insert(seen.end(), met.begin(), met.end());
  }

  std::vector<cuda::DrawRow> run() const {
    const at::Tensor list = bytes_of(picks), ids = bytes_of(seen), there = logits.to(device());
    const auto count = static_cast<int64_t>(picks.size());
    const at::TensorOptions options(device());
    at::Tensor scratch = at::empty({count, vocab}, options.dtype(at::kFloat));
    at::Tensor draws =
        at::empty({count * static_cast<int64_t>(sizeof(cuda::DrawRow))}, options.dtype(at::kByte));
    cuda::sample(cuda::current_stream(device()), as<cuda::PickRow>(list), as<int32_t>(ids),
                 there.const_data_ptr<float>(), stride, vocab, softcap, scratch.mutable_data_ptr<float>(),
                 static_cast<cuda::DrawRow*>(draws.mutable_data_ptr()), count);
    const at::Tensor back = draws.cpu();
    const auto* first = as<cuda::DrawRow>(back);
    return {first, first + count};
  }

  // The CPU's sample for pick i.
  engine::Draw want(size_t i) const {
    const cuda::PickRow& p = picks[i];
    const float* from = logits.const_data_ptr<float>() + p.logits * stride;
    std::vector<float> row(from, from + vocab);
    if (softcap != 0) {
      for (float& x : row) x = static_cast<float>(softcap * std::tanh(x / softcap));
    }
    engine::SeenIds met;
    met.reset(vocab);
    for (int32_t j = 0; j < p.seen_count; ++j) met.add(seen[static_cast<size_t>(p.seen + j)]);
    const rlt_sampling s{p.repetition_penalty, p.temperature, p.top_k, p.top_p, p.min_p};
    engine::Sampler sampler;
    return sampler.draw(row.data(), vocab, s, met, {p.seed, p.stream, p.sample, p.position});
  }
};

// Samples equal the CPU's, except for at most `most` where the rounding of a sum decides.
void compare(const Batch& batch, double most, const std::string& what) {
  const std::vector<cuda::DrawRow> got = batch.run();
  int64_t others = 0;
  double logprob = 0, raw = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const engine::Draw want = batch.want(i);
    if (got[i].token != want.token) {
      ++others;
      continue;
    }
    logprob = std::max(logprob, static_cast<double>(std::abs(got[i].logprob - want.logprob)));
    raw = std::max(raw, static_cast<double>(std::abs(got[i].raw - want.raw)));
  }
  EXPECT_AT_MOST(static_cast<double>(others), most, what + ": other tokens");
  EXPECT_AT_MOST(logprob, 2e-5, what + ": logprob");
  EXPECT_AT_MOST(raw, 1e-5, what + ": raw");
}

std::vector<int32_t> met_of(int64_t vocab) {
  std::vector<int32_t> met;
  for (int64_t id = 2; id < vocab; id = id * 3 / 2) met.push_back(static_cast<int32_t>(id));
  return met;
}

TEST(device_sampler_draws_what_the_cpu_draws) {
  Random random(11);
  for (const int64_t vocab : {1, 3, 32, 33, 300, 2048, 2049, 5003}) {
    Batch batch(3, vocab, 2, random);
    for (const Setting& setting : kSettings) {
      for (uint32_t i = 0; i < 60; ++i) {
        batch.add(setting.sampling, static_cast<int32_t>(i % 3), i,
                  i % 4 == 0 ? met_of(vocab) : std::vector<int32_t>());
      }
    }
    compare(batch, 1, std::to_string(vocab) + " tokens");
    batch.softcap = 1.5;
    compare(batch, 1, std::to_string(vocab) + " tokens, capped");
  }
}

TEST(device_sampler_of_large_vocabularies) {
  Random random(12);
  for (const double spread : {0.0, 0.01, 1.0, 6.0}) {
    Batch batch(1, 151936, spread, random);
    for (const Setting& setting : kSettings) {
      for (uint32_t i = 0; i < 3; ++i) batch.add(setting.sampling, 0, i, met_of(batch.vocab));
    }
    // If all tokens are equally likely, rounding moves a token's bounds by almost its probability.
    compare(batch, 3, "spread " + std::to_string(spread));
  }
}

// Counts how often each token is sampled.
std::map<int32_t, int> counts_of(const Batch& batch) {
  std::map<int32_t, int> counts;
  for (const cuda::DrawRow& draw : batch.run()) ++counts[draw.token];
  return counts;
}

TEST(device_sampler_draws_in_proportion) {
  constexpr int kDraws = 4000;
  Random random(13);
  Batch batch(1, 5, 0, random);
  const std::vector<double> p{0.1, 0.25, 0.05, 0.4, 0.2};
  for (size_t i = 0; i < p.size(); ++i) batch.row(0)[i] = static_cast<float>(std::log(p[i]) + 3);
  for (uint32_t i = 0; i < kDraws; ++i) batch.add({0, 1, 0, 0, 0}, 0, i);
  const std::map<int32_t, int> counts = counts_of(batch);
  for (size_t i = 0; i < p.size(); ++i) {
    const double spread = std::sqrt(kDraws * p[i] * (1 - p[i]));
    EXPECT_AT_MOST(std::abs(counts.at(static_cast<int32_t>(i)) - kDraws * p[i]), 4.5 * spread,
                   std::to_string(i));
  }
}

// Ties at the cutoff: top_k keeps all of them, top_p keeps the larger ids.
TEST(device_sampler_at_ties) {
  constexpr uint32_t kDraws = 300;
  Random random(14);
  const auto tokens = [&](const rlt_sampling& s) {
    Batch batch(1, 700, 0, random);
    for (int i = 0; i < 700; ++i) batch.row(0)[i] = -30;
    // Weight 4 for one token, 1 for six others, almost 0 for the rest.
    batch.row(0)[350] = std::log(4.0f);
    for (const int id : {20, 31, 344, 346, 600, 699}) batch.row(0)[id] = 0;
    for (uint32_t i = 0; i < kDraws; ++i) batch.add(s, 0, i);
    std::string list;
    for (const auto& [token, count] : counts_of(batch)) list += std::to_string(token) + " ";
    return list;
  };
  EXPECT_EQUAL(tokens({0, 1, 2, 0, 0}), std::string("20 31 344 346 350 600 699 "));
  EXPECT_EQUAL(tokens({0, 1, 0, 0.65, 0}), std::string("346 350 600 699 "));
  EXPECT_EQUAL(tokens({0, 1, 0, 0.3, 0}), std::string("350 "));
  EXPECT_EQUAL(tokens({0, 1, 3, 0.75, 0}), std::string("344 346 350 600 699 "));
  EXPECT_EQUAL(tokens({0, 1, 0, 0, 0.2}), std::string("20 31 344 346 350 600 699 "));
  EXPECT_EQUAL(tokens({0, 1, 0, 0, 0.3}), std::string("350 "));
}

TEST(device_sampler_where_the_likeliest_is_drawn) {
  Random random(15);
  Batch batch(2, 600, 0, random);
  for (int i = 0; i < 600; ++i) batch.row(0)[i] = batch.row(1)[i] = -1;
  batch.row(1)[301] = batch.row(1)[580] = 2;
  batch.add({0, 0, 3, 0.1, 0.5}, 0, 0);  // the first among equals
  batch.add({0, 0, 0, 0, 0}, 1, 0);
  batch.add({2, 0, 0, 0, 0}, 1, 0, {301});
  const std::vector<cuda::DrawRow> draws = batch.run();
  EXPECT_EQUAL(draws[0].token, 0);
  EXPECT_EQUAL(draws[1].token, 301);
  EXPECT_EQUAL(draws[2].token, 580);
  const double sum = 2 * std::exp(2.0) + 598 * std::exp(-1.0);
  for (const size_t i : {1, 2}) {
    EXPECT_EQUAL(draws[i].logprob, 0.0f);
    EXPECT_AT_MOST(std::abs(draws[i].raw - (2 - std::log(sum))), 1e-6, "raw");
  }
}

TEST(device_sampler_refuses_what_is_not_finite) {
  Random random(16);
  Batch batch(5, 300, 1, random);
  batch.row(0)[123] = NAN;
  batch.row(1)[299] = INFINITY;
  for (int i = 0; i < 300; ++i) batch.row(2)[i] = batch.row(3)[i] = -INFINITY;
  batch.row(3)[7] = 0;  // the only token that can be sampled
  for (const Setting& setting : kSettings) {
    for (int32_t row = 0; row < 5; ++row) batch.add(setting.sampling, row, 3, {7, 8, 123});
  }
  const std::vector<cuda::DrawRow> draws = batch.run();
  for (size_t i = 0; i < draws.size(); ++i) {
    if (i % 5 < 3) EXPECT_EQUAL(draws[i].token, int32_t{engine::kNotFinite});
    if (i % 5 == 3) EXPECT_EQUAL(draws[i].token, 7);
    if (i % 5 == 4) EXPECT(draws[i].token >= 0 && draws[i].token < 300);
  }
}

}  // namespace
