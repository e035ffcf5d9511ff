// The generation engine: its cached, batched decoding against a forward pass over the full sequence.
#include "engine/engine.h"

#include "check.h"
#include "engine_fixture.h"
#include "kernels/parallel.h"
#include "nn/block.h"
#include "transformer_fixture.h"

namespace {

using rlt::engine::Engine;
using rlt::test::Completion;
using rlt::test::Completions;
using rlt::test::DecoderChoices;
using rlt::test::prompt_of;
using rlt::test::Random;
using rlt::test::request_of;
using rlt::test::run;

void adapt(rlt::nn::Transformer& decoder, Random& random, const std::string& layer, int64_t rank,
           bool trained = false) {
  for (int64_t i = 0; i < decoder.config().layers; ++i) {
    const std::string name = "layers." + std::to_string(i) + "." + layer;
    const auto& block = decoder.blocks()[static_cast<size_t>(i)];
    const at::Tensor& w = layer == "q"         ? block.q.weight
                          : layer == "v"       ? block.v.weight
                          : layer == "qkv"     ? block.qkv.weight
                          : layer == "o"       ? block.o.weight
                          : layer == "gate"    ? block.gate.weight
                          : layer == "gate_up" ? block.gate_up.weight
                          : layer == "up"      ? block.up.weight
                                               : block.down.weight;
    const at::Tensor a = random.normal({rank, w.size(1)}, 0.3), b = random.normal({w.size(0), rank}, 0.3);
    decoder.adapt(name, a.set_requires_grad(trained), b.set_requires_grad(trained), 0.5);
  }
}

// The largest error of the engine's raw log-probabilities against a forward pass without a cache.
double largest_error(const rlt::nn::Transformer& decoder, const std::vector<int32_t>& prompt,
                     const Completion& c, bool adapter) {
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), c.tokens.begin(), c.tokens.end());
  const at::Tensor want = rlt::test::full_forward(decoder, ids, adapter);
  double worst = 0;
  for (size_t i = 0; i < c.tokens.size(); ++i) {
    const double w = want[static_cast<int64_t>(prompt.size() + i) - 1][c.tokens[i]].item<double>();
    worst = std::max(worst, std::abs(w - c.raw[i]));
  }
  return worst;
}

struct Case {
  const char* name;
  void (*change)(DecoderChoices&);
  std::vector<std::string> adapted = {"q", "o", "down"};
};

const std::vector<Case>& cases() {
  static std::vector<Case> all{
      {"plain", [](DecoderChoices&) {}, {"q", "v", "o", "gate", "up", "down"}},
      {"whole panels",
       [](DecoderChoices& c) {
         c.config.hidden_size = 32;
         c.config.head_dim = c.config.rotary_dim = 16;
         c.config.intermediate_size = 48;
       }},
      {"odd sizes",
       [](DecoderChoices& c) {
         c.config.hidden_size = 23;
         c.config.head_dim = 7;
         c.config.rotary_dim = 6;
         c.config.intermediate_size = 37;
       }},
      {"rms plus one, qk norm, post norms, softcaps, embedding scale, logit divisor",
       [](DecoderChoices& c) {
         c.config.norm = RLT_NORM_RMS_PLUS_ONE;
         c.config.qk_norm = c.config.post_norms = 1;
         c.config.attention_softcap = 2;
         c.config.logit_softcap = 3;
         c.config.embedding_scale = 4.9;
         c.config.logit_divisor = 0.6;
         c.config.activation = RLT_ACT_GELU_TANH;
       }},
      {"layer norm, learned positions, fused qkv, plain gelu, biases",
       [](DecoderChoices& c) {
         c.config.norm = RLT_NORM_LAYER;
         c.config.rotary_dim = 0;
         c.config.qkv = RLT_QKV_FUSED;
         c.config.gated = 0;
         c.config.activation = RLT_ACT_GELU;
         c.biases = true;
         c.tied = false;
       },
       {"qkv", "up", "down"}},
      {"interleaved qkv, parallel residual, partial rotation",
       [](DecoderChoices& c) {
         c.config.norm = RLT_NORM_LAYER;
         c.config.kv_heads = 4;
         c.config.qkv = RLT_QKV_INTERLEAVED;
         c.config.residual = RLT_RESIDUAL_PARALLEL;
         c.config.rotary_dim = 4;
         c.config.gated = 0;
         c.config.activation = RLT_ACT_RELU;
         c.biases = true;
       },
       {"qkv", "o"}},
      {"shared norm, one key head",
       [](DecoderChoices& c) {
         c.config.kv_heads = 1;
         c.config.residual = RLT_RESIDUAL_SHARED_NORM;
       }},
      {"many heads of a key", [](DecoderChoices& c) { c.config.heads = 14, c.config.kv_heads = 1; }},
      {"windows and two ropes",
       [](DecoderChoices& c) {
         c.windows = {5, 0};
         c.ropes = {1, 0};
       }},
      {"a window that ends inside of the tail",
       [](DecoderChoices& c) {
         c.windows = {19, 3};
       }},
      {"norms of outputs alone, of all heads together, odd heads",
       [](DecoderChoices& c) {
         c.config.heads = c.config.kv_heads = 3;
         c.config.post_norms = RLT_POST_NORMS_ONLY;
         c.config.qk_norm = RLT_QK_NORM_ALL;
       }},
      {"layer norm without biases, shared, rotation of neighbours",
       [](DecoderChoices& c) {
         c.config.norm = RLT_NORM_LAYER;
         c.norm_biases = false;
         c.config.residual = RLT_RESIDUAL_SHARED_NORM;
         c.config.rope_pairs = 1;
         c.config.rotary_dim = 6;
         c.windows = {7, 0};
       }},
      {"long rope", [](DecoderChoices& c) { c.switch_length = 30; }},
      {"fused gate and up", [](DecoderChoices& c) { c.config.fused_gate_up = 1; }, {"gate_up", "q"}},
      {"bf16", [](DecoderChoices& c) { c.type = at::kBFloat16; }},
      {"f16", [](DecoderChoices& c) { c.type = at::kHalf, c.tied = false; }},
      {"queries that grow",
       [](DecoderChoices& c) {
         c.config.query_growth = 0.8;
         c.config.query_span = 16;
       }},
  };
  if (!rlt::test::exact() && all.back().name == std::string("queries that grow"))
    all.pop_back();  // not on GPUs
  return all;
}

TEST(engine_equals_the_full_forward) {
  for (const Case& choice : cases()) {
    Random random(11);
    DecoderChoices choices;
    choice.change(choices);
    rlt::nn::Weights weights = rlt::test::decoder_weights(choices, random);
    rlt::nn::Transformer decoder(choices.get(), weights);
    // Two-byte weights are widened, or the other operand is rounded to their type. The reference is the same
    // values in fp32. The GPU engine also rounds on the CPU.
    const bool rounds =
        choices.type != at::kFloat && (rlt::test::rounds(choices.type) || !rlt::test::exact());
    const double of_bf16 = rlt::test::exact() ? 0.2 : 0.03;
    const double limit = !rounds ? 1e-4 : choices.type == at::kHalf ? 3e-3 : of_bf16;
    for (auto& [name, w] : weights) w = w.to(at::kFloat);
    rlt::nn::Transformer wide(choices.get(), weights);
    for (const std::string& layer : choice.adapted) {
      Random same(layer.size());
      adapt(decoder, same, layer, layer == "q" ? 20 : 3);
      same = Random(layer.size());
      adapt(wide, same, layer, layer == "q" ? 20 : 3);
    }
    Engine engine(decoder, 4, {});
    const std::vector<std::vector<int32_t>> prompts{prompt_of(random, 1, 50), prompt_of(random, 37, 50),
                                                    prompt_of(random, 16, 50)};
    for (size_t i = 0; i < prompts.size(); ++i) {
      rlt_request r = request_of(2, 70, i);  // enough tokens to grow the cache
      r.adapter = i != 2;
      engine.submit(r, prompts[i]);
    }
    for (const auto& [key, completion] : run(engine, 11)) {
      const auto i = static_cast<size_t>(key.first - 1);
      EXPECT_EQUAL(completion.tokens.size(), size_t{70});
      EXPECT_EQUAL(completion.reason, int32_t{RLT_LENGTH});
      EXPECT_AT_MOST(largest_error(wide, prompts[i], completion, i != 2), limit, choice.name);
    }
  }
}

// The sampler's log-probabilities are those that training computes: both round the same values, and only the
// order of some sums differs.
TEST(engine_says_what_training_says) {
  if (!rlt::test::exact()) return;  // a GPU rounds attention differently when it decodes
  for (const Case& choice : cases()) {
    Random random(21);
    DecoderChoices choices;
    choice.change(choices);
    if (choices.type == at::kFloat) choices.type = at::kBFloat16;
    rlt::nn::Transformer decoder(choices.get(), rlt::test::decoder_weights(choices, random));
    for (const std::string& layer : choice.adapted) adapt(decoder, random, layer, 3, true);
    Engine engine(decoder, 4, {});
    const std::vector<int32_t> prompt = prompt_of(random, 23, 50);
    rlt_request r = request_of(8, 40);
    r.adapter = 1;
    engine.submit(r, prompt);
    double sum = 0, n = 0;
    for (const auto& [key, c] : run(engine, 11)) {
      const at::Tensor said = rlt::test::trained_logprobs(decoder, prompt, c.tokens);
      for (size_t i = 0; i < c.raw.size(); ++i, ++n) {
        sum += std::abs(said[static_cast<int64_t>(i)].item<double>() - c.raw[i]);
      }
    }
    EXPECT_AT_MOST(sum / n, 5e-4, choice.name);  // a flip of one rounding is about 1e-4
  }
}

TEST(engine_gives_the_same_bits_in_any_batch) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Random random(12);
    DecoderChoices choices;
    choices.type = type;
    choices.windows = {21, 0};
    rlt::nn::Transformer decoder(choices.get(), rlt::test::decoder_weights(choices, random));
    adapt(decoder, random, "q", 4);
    std::vector<std::vector<int32_t>> prompts;
    for (int64_t i = 0; i < 32; ++i) prompts.push_back(prompt_of(random, 1 + random.below(30), 50));
    const auto complete = [&](int32_t slots, int64_t max_tokens) {
      Engine engine(decoder, slots, {7});
      for (size_t i = 0; i < prompts.size(); ++i) {
        rlt_request r = request_of(2, 20, i);
        r.adapter = i % 3 != 0;
        if (i % 2 == 0) r.sampling = {1.2, 0.8, 20, 0.95, 0.01};
        engine.submit(r, prompts[i]);
      }
      return run(engine, max_tokens);
    };
    const Completions want = complete(1, 64);
    EXPECT_EQUAL(want.size(), size_t{64});
    for (const int threads : {1, 2}) {
      rlt::set_thread_count(threads);
      for (const auto& [slots, max_tokens] : {std::pair(1, 1), {7, 7}, {7, 100}, {32, 48}, {64, 2000}}) {
        EXPECT(complete(slots, max_tokens) == want);
      }
    }
  }
}

// Nor does it matter where a long prompt is cut, and where its windows begin.
TEST(engine_cuts_prompts_anywhere) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t window : {1, 2, 3, 17, 32, 34}) {
      Random random(15);
      DecoderChoices choices;
      choices.type = type;
      choices.windows = {window, 0};
      rlt::nn::Transformer decoder(choices.get(), rlt::test::decoder_weights(choices, random));
      const std::vector<int32_t> prompt = prompt_of(random, 120, 50);
      const auto complete = [&](int64_t max_tokens) {
        Engine engine(decoder, 1, {});
        engine.submit(request_of(1, 1), prompt);
        return run(engine, max_tokens);
      };
      EXPECT(complete(1) == complete(120));
    }
  }
}

// If a model is too large to run once per thread, threads split the columns instead.
TEST(engine_splits_large_models_by_columns) {
  Random random(13);
  DecoderChoices choices;
  choices.config.vocab_size = 70000;
  choices.config.hidden_size = 64;
  rlt::nn::Transformer decoder(choices.get(), rlt::test::decoder_weights(choices, random));
  const std::vector<int32_t> prompt = prompt_of(random, 20, 70000);
  const auto complete = [&](int threads, int32_t slots) {
    rlt::set_thread_count(threads);
    Engine engine(decoder, slots, {});
    engine.submit(request_of(3, 5), prompt);
    return run(engine, 64);
  };
  const Completions want = complete(1, 1);
  EXPECT_AT_MOST(largest_error(decoder, prompt, want.at({1, 2}), false), 1e-4, "large vocabulary");
  EXPECT(complete(2, 3) == want);
  EXPECT(complete(2, 1) == want);
}

TEST(engine_greedy_takes_the_peak) {
  Random random(14);
  DecoderChoices choices;
  rlt::nn::Transformer decoder(choices.get(), rlt::test::decoder_weights(choices, random));
  Engine engine(decoder, 2, {});
  const std::vector<int32_t> prompt = prompt_of(random, 9, 50);
  rlt_request r = request_of(1, 12);
  r.sampling.temperature = 0;
  engine.submit(r, prompt);
  const Completion got = run(engine, 8).at({1, 0});
  std::vector<int32_t> ids = prompt;
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    const at::Tensor row = rlt::test::full_forward(decoder, ids, false)[-1];
    EXPECT_EQUAL(got.tokens[i], row.argmax().item<int32_t>());
    EXPECT_EQUAL(got.logprobs[i], 0.0f);
    ids.push_back(got.tokens[i]);
  }
}

TEST(engine_stops_cancels_and_reuses_slots) {
  Random random(15);
  DecoderChoices choices;
  rlt::nn::Transformer decoder(choices.get(), rlt::test::decoder_weights(choices, random));
  const std::vector<int32_t> prompt = prompt_of(random, 6, 50);
  Engine free_running(decoder, 5, {});
  free_running.submit(request_of(5, 10), prompt);
  Completions want = run(free_running, 64);
  const int32_t eos = want.at({1, 0}).tokens[3];
  for (auto& [key, c] : want) {
    for (size_t i = 0; i < c.tokens.size(); ++i) {
      if (c.tokens[i] != eos) continue;
      c.reason = RLT_STOPPED;
      c.tokens.resize(i + 1);
      c.logprobs.resize(i + 1);
      c.raw.resize(i + 1);
    }
  }
  Engine engine(decoder, 2, {3 == eos ? 4 : 3, eos});
  engine.submit(request_of(5, 10), prompt);
  EXPECT_EQUAL(engine.step(64).size(), size_t{2});
  Completions got;
  engine.cancel(1, 4);  // a waiting sample
  engine.cancel(1, 4);
  const std::vector<rlt_event> events = engine.step(64);
  EXPECT_EQUAL(events.size(), size_t{3});
  EXPECT_EQUAL(events[0].sample, 4);
  EXPECT_EQUAL(events[0].token, -1);
  EXPECT_EQUAL(events[0].reason, int32_t{RLT_CANCELLED});
  engine.cancel(1, 0);  // a running sample
  for (const auto& [key, c] : run(engine, 2)) {
    if (key.second == 0) {
      EXPECT_EQUAL(c.reason, int32_t{RLT_CANCELLED});
      EXPECT(c.tokens.empty());
    } else if (key.second != 1) {
      EXPECT(c == want.at(key));
    }
  }
  EXPECT(engine.step(64).empty());
  engine.cancel(1, 1);  // a finished sample: no effect
  EXPECT(engine.idle());
  EXPECT_EQUAL(engine.submit(request_of(1, 10), prompt), int64_t{2});
  EXPECT(run(engine, 64).at({2, 0}) == want.at({1, 0}));
}

TEST(engine_refresh_reads_what_changed) {
  Random random(16);
  DecoderChoices choices;
  rlt::nn::Weights weights = rlt::test::decoder_weights(choices, random);
  rlt::nn::Transformer decoder(choices.get(), weights);
  Engine engine(decoder, 1, {});
  const std::vector<int32_t> prompt = prompt_of(random, 6, 50);
  rlt_request r = request_of(1, 5);
  r.adapter = 1;
  const auto error = [&] {
    const int64_t id = engine.submit(r, prompt);
    return largest_error(decoder, prompt, run(engine, 64).at({id, 0}), true);
  };
  EXPECT_AT_MOST(error(), 1e-4, "fresh");
  weights["layers.0.up.weight"].mul_(2);
  weights["layers.1.attn_norm.weight"].mul_(2);
  EXPECT(!rlt::test::exact() || error() > 1e-3);  // only the CPU engine has a copy of the weights
  engine.refresh();
  EXPECT_AT_MOST(error(), 1e-4, "changed weights");
  adapt(decoder, random, "v", 3);
  EXPECT(error() > 1e-3);
  engine.refresh();
  EXPECT_AT_MOST(error(), 1e-4, "adapter");
  engine.submit(r, prompt);
  EXPECT_THROWS("1 samples have not ended", engine.refresh());
}

TEST(engine_refuses_what_it_does_not_run) {
  using rlt::test::Shape;
  const auto refuse = [](const std::string& part, void (*change)(Shape&)) {
    Random random(18);
    Shape s = rlt::test::shape("llama", change);
    const rlt::nn::Transformer model(s.config(), rlt::test::random_weights(random, s));
    EXPECT_THROWS(part, Engine(model, 1, {}));
  };
  refuse("norm of its embeddings", [](Shape& s) { s.c.embed_norm = 1; });
  refuse("widens its embeddings", [](Shape& s) { s.c.embedding_size = 6; });
  refuse("whose layers are one", [](Shape& s) { s.c.shared_layers = 1; });
  refuse("bidirectional", [](Shape& s) { s.c.bidirectional = 1; });
  refuse("norms come after", [](Shape& s) { s.c.norm_after = 1; });
  refuse("types of tokens", [](Shape& s) { s.c.token_types = 1; });
  refuse("begin at another", [](Shape& s) {
    s.c.rotary_dim = 0;
    s.c.first_position = 1;
  });
}

TEST(engine_refuses_bad_requests) {
  Random random(17);
  DecoderChoices choices;
  rlt::nn::Transformer decoder(choices.get(), rlt::test::decoder_weights(choices, random));
  EXPECT_THROWS("slots must be positive, got 0", Engine(decoder, 0, {}));
  EXPECT_THROWS("eos: 50 is not in [0, 50)", Engine(decoder, 1, {50}));
  Engine engine(decoder, 2, {});
  const rlt_request good = request_of(1, 4);
  const auto with = [&](const std::function<void(rlt_request&)>& change) {
    rlt_request r = good;
    change(r);
    return engine.submit(r, {1, 2});
  };
  EXPECT_THROWS("the prompt is empty", engine.submit(good, {}));
  EXPECT_THROWS("prompt: 50 at 1 is not in [0, 50)", engine.submit(good, {1, 50}));
  EXPECT_THROWS("prompt: -1 at 0", engine.submit(good, {-1}));
  EXPECT_THROWS("samples must be positive, got 0", with([](rlt_request& r) { r.samples = 0; }));
  EXPECT_THROWS("max_new must be positive, got 0", with([](rlt_request& r) { r.max_new = 0; }));
  EXPECT_THROWS("a prompt of 2 tokens and max_new 127 exceed the model's 128 positions",
                with([](rlt_request& r) { r.max_new = 127; }));
  EXPECT_THROWS("exceed", with([](rlt_request& r) { r.max_new = INT64_MAX; }));
  EXPECT_THROWS("temperature -1", with([](rlt_request& r) { r.sampling.temperature = -1; }));
  EXPECT_THROWS("temperature nan", with([](rlt_request& r) { r.sampling.temperature = NAN; }));
  EXPECT_THROWS("top_k -1", with([](rlt_request& r) { r.sampling.top_k = -1; }));
  EXPECT_THROWS("top_p 1.5", with([](rlt_request& r) { r.sampling.top_p = 1.5; }));
  EXPECT_THROWS("min_p nan", with([](rlt_request& r) { r.sampling.min_p = NAN; }));
  EXPECT_THROWS("repetition_penalty -2", with([](rlt_request& r) { r.sampling.repetition_penalty = -2; }));
  EXPECT_THROWS("max_tokens 1 is less than the engine's 2 slots", engine.step(1));
  EXPECT_THROWS("no request 1: the last one is 0", engine.cancel(1, 0));
  EXPECT(engine.step(2).empty());
  engine.submit(good, {1, 2});
  EXPECT_THROWS("request 1 has no sample 1 of 1", engine.cancel(1, 1));
}

// Non-finite values stay within their sample, and its slot can be reused.
TEST(engine_ends_samples_that_are_not_finite_alone) {
  Random random(18);
  DecoderChoices choices;
  rlt::nn::Weights weights = rlt::test::decoder_weights(choices, random);
  weights["embed.weight"][7].fill_(NAN);
  choices.tied = false;
  weights["head.weight"] = random.normal({50, 24}, 0.25);
  rlt::nn::Transformer decoder(choices.get(), weights);
  const rlt_request r = request_of(2, 20);
  const std::vector<int32_t> sick{1, 7, 2}, well{1, 8, 2};
  Engine alone(decoder, 1, {});
  alone.submit(r, well);
  const Completions want = run(alone, 8);
  Engine engine(decoder, 3, {});
  for (const auto& prompt : {well, sick, well}) engine.submit(r, prompt);
  const Completions got = run(engine, 5);
  for (const int32_t sample : {0, 1}) {
    EXPECT(got.at({1, sample}) == want.at({1, sample}));
    EXPECT(got.at({3, sample}) == want.at({1, sample}));
    EXPECT_EQUAL(got.at({2, sample}).reason, int32_t{RLT_NOT_FINITE});
    EXPECT(got.at({2, sample}).tokens.empty());
  }
}

// Requests with three adapters and without one, in one batch, give the same results as separately.
TEST(engine_runs_adapters_in_one_batch) {
  for (const Case& choice : cases()) {
    Random random(19);
    DecoderChoices choices;
    choice.change(choices);
    const rlt_model_config& config = choices.get();
    rlt::nn::Weights weights = rlt::test::decoder_weights(choices, random);
    std::vector<std::unique_ptr<rlt::nn::Transformer>> models;
    for (size_t i = 0; i < 3; ++i) {
      models.push_back(std::make_unique<rlt::nn::Transformer>(config, weights));
      for (size_t j = 0; j < choice.adapted.size(); ++j) {
        if (j != i) adapt(*models[i], random, choice.adapted[j], i == 1 ? 20 : 3);
      }
    }
    const std::vector<int32_t> prompt = prompt_of(random, 11, 50);
    Completions want;
    for (int32_t adapter = 0; adapter < 4; ++adapter) {
      Engine alone(*models[static_cast<size_t>(std::max(0, adapter - 1))], 1, {});
      rlt_request r = request_of(3, 12);
      r.adapter = adapter > 0;
      alone.submit(r, prompt);
      for (const auto& [key, c] : run(alone, 64)) want[{adapter, key.second}] = c;
    }
    EXPECT(!(want.at({0, 0}) == want.at({1, 0})) && !(want.at({1, 0}) == want.at({2, 0})));
    for (const auto& [slots, max_tokens] : {std::pair(1, 1), {7, 9}, {24, 2000}}) {
      Engine engine(*models[0], slots, {});
      engine.set_adapter(2, models[1].get());
      engine.set_adapter(9, models[2].get());
      for (int32_t i = 0; i < 8; ++i) {
        rlt_request r = request_of(3, 12);
        r.adapter = i % 4 == 3 ? 9 : i % 4;
        engine.submit(r, prompt);
      }
      for (const auto& [key, c] : run(engine, max_tokens)) {
        EXPECT(c == want.at({static_cast<int64_t>((key.first - 1) % 4), key.second}));
      }
    }
  }
}

TEST(engine_adapters_come_and_go) {
  Random random(20);
  DecoderChoices choices;
  const rlt_model_config& config = choices.get();
  rlt::nn::Weights weights = rlt::test::decoder_weights(choices, random);
  rlt::nn::Transformer decoder(config, weights), other(config, weights);
  const rlt::nn::Transformer stranger(config, rlt::test::decoder_weights(choices, random));
  adapt(other, random, "up", 3);
  const std::vector<int32_t> prompt = prompt_of(random, 6, 50);
  Engine engine(decoder, 2, {});
  rlt_request r = request_of(1, 5);
  r.adapter = 2;
  EXPECT_THROWS("there is no adapter 2", engine.submit(r, prompt));
  EXPECT_THROWS("adapter 1 is outside of 2 to", engine.set_adapter(1, &other));
  EXPECT_THROWS("does not share the weights", engine.set_adapter(2, &stranger));
  EXPECT_THROWS("there is no adapter 2", engine.submit(r, prompt));
  engine.set_adapter(2, &other);
  int64_t id = engine.submit(r, prompt);
  engine.set_adapter(3, &other);  // other adapters may be registered meanwhile
  EXPECT_THROWS("1 samples by adapter 2 have not ended", engine.set_adapter(2, nullptr));
  EXPECT_AT_MOST(largest_error(other, prompt, run(engine, 64).at({id, 0}), true), 1e-4, "first");
  engine.refresh();  // keeps the registered adapters
  adapt(other, random, "up", 20);
  engine.set_adapter(2, &other);
  id = engine.submit(r, prompt);
  EXPECT_AT_MOST(largest_error(other, prompt, run(engine, 64).at({id, 0}), true), 1e-4, "another");
  engine.set_adapter(2, nullptr);
  EXPECT_THROWS("there is no adapter 2", engine.submit(r, prompt));
}

}  // namespace
