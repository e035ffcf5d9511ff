// Quantised weights: round trips of blocks, and quantised models against the models that they dequantise to,
// bit for bit.
#include "kernels/quant.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "engine_fixture.h"
#include "kernels/quant_panels.h"
#include "kernels/tiles.h"
#include "nn/linear_group.h"
#include "ops/quant.h"
#include "support.h"

namespace {

using rlt::Quant;
using rlt::QuantFormat;
using rlt::nn::Linear;
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

Linear quantised_layer(Random& random, const QuantFormat& f, int64_t out, int64_t in) {
  Linear made;
  made.quant = f.quant;
  made.inputs = in;
  made.weight = random_rows(random, f, out, made.inputs);
  made.bias = random.normal({out});
  made.a = random.normal({3, made.inputs}, 0.1);
  made.b = random.normal({out, 3}, 0.1);
  made.scale = 0.7;
  return made;
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

// Rows as floats and rounded are the same values for every format.
TEST(dequantised_rows_agree) {
  Random random(402);
  for (const QuantFormat& f : formats()) {
    const int64_t in = inputs_of(f);
    const at::Tensor rows = random_rows(random, f, 16, in),
                     wide = rlt::dequantize(rows, int64_t(f.quant), in, at::kFloat);
    EXPECT(rlt::test::finite(wide));
    EXPECT(same_bits(rlt::dequantize(rows, int64_t(f.quant), in, at::kBFloat16), wide.to(at::kBFloat16)));
  }
}

// Calls f for each set of kernels that runs here, chosen; the slow ones, which are for tests, only if asked
// to.
template <class F>
void for_kernels(bool slow, const F& f) {
  const std::string chosen = rlt::kernels_name();
  for (const bool back : {false, true}) {
    for (int i = 0; i < rlt::kInstructionSets; ++i) {
      const rlt::InstructionSet& set = rlt::instruction_sets()[i];
      if (!set.runs || (set.by_name && !slow && !back) || (back && set.name != chosen)) continue;
      rlt::use_kernels(set);
      if (!back) f();
    }
  }
}

// Panels of few bits are those of the rows, by the kernels of every instruction set, in any steps of k;
// outputs and k that there are not are zeros.
TEST(unpacked_panels_equal_dequantised_rows) {
  Random random(406);
  for (const QuantFormat& f : formats()) {
    const int64_t in = f.values > 1 ? 768 - 3 * f.values % 256 : 301, words = rlt::words_of(in);
    const at::Tensor rows = random_rows(random, f, 16, in);
    for (const int64_t count : {1, 7, 16}) {
      const rlt::QuantRows from{f.quant, rows.const_data_ptr<uint8_t>(), count};
      const auto unpacked = [&](bool rounds) {
        const rlt::QuantPanels panels({{f.quant, from.rows, 16}, from}, in, rounds);
        at::Tensor panel = at::empty({2 * words, 16}, rounds ? at::kBFloat16 : at::kFloat).fill_(NAN);
        auto* const out = static_cast<char*>(panel.mutable_data_ptr());
        for (int64_t k = 0; k < 2 * words; k += 256) {
          panels.unpack(1, k, std::min(k + 256, 2 * words), 0, out + k * 16 * panel.element_size());
        }
        const at::Tensor turned = rounds ? panel.view({words, 16, 2}).permute({1, 0, 2}) : panel.t();
        return turned.reshape({16, 2 * words});
      };
      for_kernels(true, [&] {
        for (const bool rounds : {false, true}) {
          if (!rounds && !rlt::few_are_floats()) continue;
          const at::Tensor panel = unpacked(rounds),
                           want = rlt::dequantize(rows, int64_t(f.quant), in, panel.scalar_type());
          EXPECT(
              same_bits(panel.narrow(0, 0, count).narrow(1, 0, in).contiguous(), want.narrow(0, 0, count)));
          EXPECT(panel.narrow(0, count, 16 - count).eq(0).all().item<bool>());
          EXPECT(panel.narrow(1, in, 2 * words - in).eq(0).all().item<bool>());
        }
      });
    }
  }
}

// Products with panels of few bits are those with the panels that they unpack to, to the bit: one row, a
// tile, many; rounded or not. A group may have layers of two formats.
TEST(products_unpack_weights_a_step_at_a_time) {
  Random random(407);
  const QuantFormat any = formats()[0];
  for (const QuantFormat& f : formats()) {
    const int64_t in = f.values > 1 ? 512 - f.values % 256 : 301;
    Linear gate = quantised_layer(random, f, 80, in),
           up = quantised_layer(random, f.quant == Quant::kQ4_1 ? any : f, 80, in);
    for (const bool gated : {false, true}) {
      for_kernels(f.quant == Quant::kNF4, [&] {
        gate.rounded = up.rounded = gated;
        Linear dense[2] = {gate, up};
        for (Linear& l : dense) l.weight = l.dense(), l.quant = Quant::kNone;
        const rlt::nn::LinearGroup few({&gate, &up}, gated), plain({&dense[0], &dense[1]}, gated),
            last({&gate}), last_plain({&dense[0]});
        for (const int64_t rows : {1, 2, 3, 6, 16, 33, 70}) {
          const at::Tensor x = random.normal({rows, gate.in()}), y = random.normal({rows, 80});
          const int32_t activation = gated ? RLT_ACT_SILU : rlt::kNoActivation;
          for (const bool adapted : {false, true}) {
            EXPECT(same_bits(few.forward(x, adapted, activation), plain.forward(x, adapted, activation)));
            EXPECT(same_bits(last.forward_add(x, adapted, y), last_plain.forward_add(x, adapted, y)));
          }
        }
      });
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

// Decoder weights with all linear layers and the head quantised, and the same weights dequantised.
Models models_of(Random& random, rlt::test::DecoderChoices& choices, const QuantFormat& f) {
  choices.config.hidden_size = 256;
  choices.config.heads = 8;
  choices.config.kv_heads = 4;
  choices.config.head_dim = 32;
  choices.config.rotary_dim = 32;
  choices.config.intermediate_size = 512;
  choices.tied = false;
  choices.type = rlt::quant_type();
  Models made;
  made.dense = rlt::test::decoder_weights(choices, random);
  made.quantised = made.dense;
  for (auto& [name, w] : made.dense) {
    const size_t dot = name.rfind(".weight");
    const bool head = name == "head.weight";
    if ((name.rfind("layers.", 0) != 0 && !head) || w.dim() != 2 || dot == std::string::npos) continue;
    const int64_t in = w.size(1);
    at::Tensor rows = random_rows(random, f, w.size(0), in);
    w = rlt::dequantize(rows, int64_t(f.quant), in, head ? at::kBFloat16 : choices.type);
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
          tokens, rlt::test::vector_of(positions), rlt::test::borders({25, 35}), {}, {}, {}, {}};
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
