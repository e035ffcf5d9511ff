// Quantised weights: round trips of blocks, and quantised models against the bfloat16 models they dequantise
// to, bit for bit.
#include "kernels/quant.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "engine_fixture.h"
#include "ops/quant.h"
#include "support.h"

namespace {

using rlt::Quant;
using rlt::QuantFormat;
using rlt::test::Random;
using rlt::test::relative;
using rlt::test::same_bits;

std::vector<QuantFormat> formats() {
  return {rlt::quant_formats(), rlt::quant_formats() + rlt::kQuantFormats};
}

// Rows of random bytes, with the exponents of the float16 scales limited so that values stay finite.
at::Tensor random_rows(Random& random, const QuantFormat& f, int64_t out, int64_t in) {
  if (rlt::can_quantize(f.quant)) return rlt::quantize(random.normal({out, in}, 0.1), int64_t(f.quant));
  at::Tensor rows = at::empty({out, f.row_bytes(in)}, at::kByte);
  auto* const bytes = rows.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < rows.numel(); ++i) bytes[i] = static_cast<uint8_t>(random.below(256));
  const std::vector<int64_t> halves = f.quant == Quant::kQ6_K ? std::vector<int64_t>{208}
                                      : f.quant == Quant::kQ4_1 || f.quant == Quant::kQ4_K
                                          ? std::vector<int64_t>{0, 2}
                                          : std::vector<int64_t>{0};
  for (int64_t block = 0; block < rows.numel(); block += f.bytes) {
    for (const int64_t at : halves) bytes[block + at + 1] = static_cast<uint8_t>(0x14 + random.below(8));
  }
  return rows;
}

int64_t inputs_of(const QuantFormat& f) {
  return f.values > 64 ? 2 * f.values : f.values > 1 ? 6 * f.values : 101;
}

TEST(quantised_values_are_near_and_extremes_exact) {
  Random random(401);
  at::Tensor w = random.normal({5, 192}, 0.02);
  w[1].mul_(1e-7);
  w[2].zero_();
  w[3][70] = -3;
  for (const Quant quant : {Quant::kInt8, Quant::kNF4}) {
    const at::Tensor wide =
        rlt::dequantize(rlt::quantize(w, int64_t(quant)), int64_t(quant), 192, at::kFloat);
    const double step = quant == Quant::kInt8 ? 0.5 / 127 : 0.16;  // the widest gap of NF4 is 0.304
    const int64_t block = quant == Quant::kInt8 ? 192 : 64;
    const at::Tensor most = w.view({5, -1, block}).abs().amax(2, true),
                     error = wide.sub(w).view({5, -1, block}).abs();
    EXPECT(error.le(most.mul(step)).all().item<bool>());
    EXPECT(wide[2].eq(0).all().item<bool>());
    EXPECT_EQUAL(wide[3][70].item<float>(), -3.0f);
    // Quantising a dequantised tensor again gives the same bytes.
    EXPECT(same_bits(rlt::quantize(wide, int64_t(quant)), rlt::quantize(w, int64_t(quant))));
  }
  EXPECT_THROWS("nf4 needs rows of a multiple of 64", rlt::quantize(random.normal({2, 100}), 2));
  EXPECT_THROWS("q4_0 is only read", rlt::quantize(random.normal({2, 64}), int64_t(Quant::kQ4_0)));
  EXPECT_THROWS("no quantised type 8", rlt::quantize(random.normal({2, 64}), 8));
  EXPECT_THROWS("rows of 64 values are dense uint8 [out, 36]", rlt::dequantize(w.to(at::kByte), 2, 64));
}

// Rows dequantised to float32, to bfloat16 and to panels agree in every format. Missing rows of a panel are
// zero.
TEST(dequantised_rows_and_panels_agree) {
  Random random(402);
  for (const QuantFormat& f : formats()) {
    const int64_t in = inputs_of(f), out = 16, even = (in + 1) / 2 * 2;
    const at::Tensor rows = random_rows(random, f, out, in);
    const at::Tensor wide = rlt::dequantize(rows, int64_t(f.quant), in, at::kFloat),
                     half = rlt::dequantize(rows, int64_t(f.quant), in);
    EXPECT(rlt::test::finite(wide));
    EXPECT(same_bits(half, wide.to(at::kBFloat16)));
    for (const int64_t count : {1, 7, 16}) {
      at::Tensor panel = at::empty({even / 2, 16, 2}, at::kBFloat16).fill_(NAN);
      rlt::dequantize_panel(f.quant, rows.const_data_ptr<uint8_t>(), count, in,
                            static_cast<uint16_t*>(panel.mutable_data_ptr()));
      const at::Tensor turned = panel.permute({1, 0, 2}).reshape({16, even});
      EXPECT(same_bits(turned.narrow(0, 0, count).narrow(1, 0, in).contiguous(), half.narrow(0, 0, count)));
      EXPECT(turned.narrow(0, count, 16 - count).eq(0).all().item<bool>());
      if (even > in) EXPECT(turned.narrow(1, in, 1).eq(0).all().item<bool>());
    }
  }
}

// Forward and all gradients of a layer, with and without an adapter.
TEST(quantised_layers_equal_the_layers_that_they_dequantise_to) {
  Random random(403);
  for (const QuantFormat& f : formats()) {
    const int64_t in = inputs_of(f), out = 37;
    const at::Tensor rows = random_rows(random, f, out, in), w = rlt::dequantize(rows, int64_t(f.quant), in),
                     values = random.normal({19, in}), bias = random.normal({out}),
                     a = random.normal({3, in}, 0.1), b = random.normal({out, 3}, 0.1),
                     upstream = random.normal({19, out}), keys = random.ints(19, 1000);
    std::vector<std::vector<at::Tensor>> found;
    for (const bool quantised : {false, true}) {
      const at::Tensor x = rlt::test::leaf(values), xa = rlt::test::leaf(values), la = rlt::test::leaf(a),
                       lb = rlt::test::leaf(b);
      const at::Tensor y = quantised ? rlt::quant_linear(x, rows, f.quant, bias) : rlt::linear(x, w, bias);
      const at::Tensor z = quantised
                               ? rlt::quant_lora_linear(xa, rows, f.quant, bias, la, lb, 0.7, 0.2, keys, 4)
                               : std::get<0>(rlt::lora_linear(xa, w, bias, la, lb, 0.7, 0.2, keys, 4));
      y.backward(upstream);
      z.backward(upstream);
      found.push_back({y.detach(), z.detach(), x.grad(), xa.grad(), la.grad(), lb.grad()});
    }
    for (size_t i = 0; i < found[0].size(); ++i) EXPECT(same_bits(found[0][i], found[1][i]));
  }
}

struct Models {
  rlt::nn::Weights dense, quantised;
};

// Decoder weights with all linear layers quantised, and the same weights dequantised.
Models models_of(Random& random, rlt::test::DecoderChoices& choices, const QuantFormat& f) {
  choices.config.hidden_size = 256;
  choices.config.heads = 8;
  choices.config.kv_heads = 4;
  choices.config.head_dim = 32;
  choices.config.rotary_dim = 32;
  choices.config.intermediate_size = 512;
  choices.type = at::kBFloat16;
  Models made;
  made.dense = rlt::test::decoder_weights(choices, random);
  made.quantised = made.dense;
  for (auto& [name, w] : made.dense) {
    const size_t dot = name.rfind(".weight");
    if (name.rfind("layers.", 0) != 0 || w.dim() != 2 || dot == std::string::npos) continue;
    const int64_t in = w.size(1);
    at::Tensor rows = random_rows(random, f, w.size(0), in);
    w = rlt::dequantize(rows, int64_t(f.quant), in);
    made.quantised.erase(name);
    made.quantised[name.substr(0, dot) + "." + f.name] = rows;
  }
  return made;
}

TEST(quantised_models_equal_the_models_that_they_dequantise_to) {
  for (const QuantFormat& f : formats()) {
    Random random(404);
    rlt::test::DecoderChoices choices;
    const Models weights = models_of(random, choices, f);
    const at::Tensor a = random.normal({4, 256}, 0.1), b = random.normal({256, 4}, 0.1);
    const at::Tensor tokens = random.ints(60, choices.config.vocab_size);
    std::vector<int64_t> positions;
    for (const int64_t n : {25, 35}) {
      for (int64_t i = 0; i < n; ++i) positions.push_back(i);
    }
    std::vector<std::vector<at::Tensor>> found;
    std::vector<rlt::test::Completions> written;
    const auto prompt = rlt::test::prompt_of(random, 20, choices.config.vocab_size);
    for (const rlt::nn::Weights* w : {&weights.dense, &weights.quantised}) {
      rlt::test::DecoderChoices own = choices;
      rlt::nn::Transformer model(own.get(), *w);
      const at::Tensor la = rlt::test::leaf(a), lb = rlt::test::leaf(b);
      model.adapt("layers.1.q", la, lb, 0.5);
      rlt::nn::AdapterPass pass;
      pass.on = true;
      const rlt::nn::Batch batch{
          tokens, rlt::test::vector_of(positions), rlt::test::borders({25, 35}), {}, {}};
      std::vector<at::Tensor> results;
      for (const bool checkpoint : {false, true}) {
        const at::Tensor y = model.forward(batch, pass, checkpoint);
        y.pow(2).sum().backward();
        results.insert(results.end(), {y.detach(), la.grad().clone(), lb.grad().clone()});
      }
      found.push_back(std::move(results));
      rlt::engine::Engine engine(model, 3, {});
      rlt_request r = rlt::test::request_of(4, 9);
      r.adapter = 1;
      engine.submit(r, prompt);
      written.push_back(rlt::test::run(engine, 16));
    }
    for (size_t i = 0; i < found[0].size(); ++i) EXPECT(same_bits(found[0][i], found[1][i]));
    EXPECT(written[0] == written[1]);
  }
}

TEST(quantised_weights_that_do_not_fit_are_refused) {
  Random random(405);
  rlt::test::DecoderChoices choices;
  Models weights = models_of(random, choices, rlt::format_of(Quant::kNF4));
  const auto with = [&](const std::string& name, const at::Tensor& t) {
    rlt::nn::Weights changed = weights.quantised;
    changed[name] = t;
    rlt::nn::Transformer(choices.get(), changed);
  };
  EXPECT_THROWS("weight layers.0.q.nf4 is", with("layers.0.q.nf4", random.normal({256, 144})));
  EXPECT_THROWS("weight layers.0.q.nf4 is", with("layers.0.q.nf4", at::zeros({256, 140}, at::kByte)));
  EXPECT_THROWS("no place for weight layers.0.q.weight",
                with("layers.0.q.weight", random.normal({256, 256})));
  EXPECT_THROWS("no place for weight norm.nf4", with("norm.nf4", at::zeros({1, 36}, at::kByte)));
}

}  // namespace
