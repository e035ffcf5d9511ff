// Tests of the C ABI: models.
#include <string>

#include "abi_support.h"
#include "transformer_fixture.h"

namespace {

using rlt::test::Handles;
using rlt::test::NoLeaks;
using rlt::test::Random;

struct Model {
  explicit Model(Random& random) {
    std::vector<const char*> names;
    std::vector<rlt_tensor> tensors;
    const rlt::nn::Weights weights = rlt::test::random_weights(random, shape);
    for (const auto& [name, w] : weights) {
      names.push_back(name.c_str());
      tensors.push_back(handles.give(w));
    }
    const auto n = static_cast<int32_t>(names.size());
    EXPECT_OK(rlt_model_new(&shape.config(), names.data(), tensors.data(), n, &model));
  }
  ~Model() { rlt_model_free(model); }

  rlt::test::Shape shape = rlt::test::shape("bert", rlt::test::post_norm);
  Handles handles;
  rlt_model* model = nullptr;
};

TEST(abi_model_forward) {
  const NoLeaks check;
  Random random(61);
  Model m(random);
  Handles h;
  const rlt_tensor a = h.give(random.normal({2, 20}).requires_grad_(true)),
                   b = h.give(random.normal({24, 2}).requires_grad_(true));
  EXPECT_OK(rlt_model_adapt(m.model, "layers.1.v", a, b, 0, 2));
  EXPECT_ERROR("no linear layer", rlt_model_adapt(m.model, "pooler.dense", a, b, 0, 2));
  EXPECT_ERROR("do not fit", rlt_model_adapt(m.model, "layers.1.down", a, b, 0, 2));
  EXPECT_ERROR("do not fit", rlt_model_adapt(m.model, "layers.1.v", 0, b, 0, 2));
  EXPECT_ERROR("want 24 magnitudes that are trained", rlt_model_adapt(m.model, "layers.1.v", a, b, a, 2));

  rlt_model_input input{};
  input.tokens = h.give(rlt::test::vector_of<int64_t>({0, 30, 3}));
  input.positions = h.give(rlt::test::vector_of<int64_t>({0, 1, 0}));
  input.cu_seqlens = h.give(rlt::test::borders({2, 1}));
  input.adapter = 1;
  rlt_tensor hidden = 0;
  EXPECT_OK(rlt_model_forward(m.model, RLT_NO_GRAD, &input, &hidden, nullptr));
  EXPECT_EQUAL(rlt::borrow(hidden).sizes(), c10::IntArrayRef({3, 20}));
  EXPECT(!rlt::borrow(hidden).requires_grad());
  rlt_tensor_free(&hidden, 1);
  EXPECT_OK(rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden, nullptr));
  EXPECT(rlt::borrow(hidden).requires_grad());
  rlt_tensor_free(&hidden, 1);
  input.adapter = 0;
  EXPECT_OK(rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden, nullptr));
  EXPECT(!rlt::borrow(hidden).requires_grad());
  rlt_tensor_free(&hidden, 1);
}

TEST(abi_model_forward_refuses_bad_batches) {
  const NoLeaks check;
  Random random(62);
  Model m(random);
  Handles h;
  const rlt_tensor a = h.give(random.normal({2, 20})), b = h.give(random.normal({24, 2}));
  EXPECT_OK(rlt_model_adapt(m.model, "layers.0.q", a, b, 0, 1));
  using Ids = std::vector<int64_t>;
  const auto ids = [&](const Ids& values) { return h.give(rlt::test::vector_of(values)); };
  const rlt_model_input good{
      ids({0, 30, 3}), ids({0, 1, 0}), h.give(rlt::test::borders({2, 1})), 0, 0, 1, 0, 0, 0, 0, 0};
  rlt_tensor hidden = 0;
  const auto run = [&](rlt_tensor rlt_model_input::*field, rlt_tensor value) {
    rlt_model_input input = good;
    input.*field = value;
    return rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden, nullptr);
  };
  const auto tokens = &rlt_model_input::tokens, positions = &rlt_model_input::positions,
             cu = &rlt_model_input::cu_seqlens;
  EXPECT_ERROR("tokens: 31 at 1", run(tokens, ids({0, 31, 3})));
  EXPECT_ERROR("tokens: -1 at 2", run(tokens, ids({0, 1, -1})));
  EXPECT_ERROR("tokens", run(tokens, ids({0, INT64_MAX, 1})));
  EXPECT_ERROR("positions: want 2", run(tokens, ids({0, 1})));
  EXPECT_ERROR("tokens: want", run(tokens, 0));
  EXPECT_ERROR("tokens: want", run(tokens, h.give(rlt::test::vector_of<int32_t>({0, 1, 2}))));
  EXPECT_ERROR("tokens: want", run(tokens, h.give(random.normal({3}))));
  EXPECT_ERROR("tokens: want", run(tokens, h.give(random.ints(3, 5).view({3, 1}))));
  EXPECT_ERROR("tokens: want", run(tokens, h.give(random.ints(6, 5).slice(0, 0, 6, 2))));
  EXPECT_ERROR("positions: 64 at 1", run(positions, ids({0, 64, 0})));
  EXPECT_ERROR("positions: -7 at 0", run(positions, ids({-7, 0, 0})));
  EXPECT_ERROR("positions: want 3", run(positions, ids({0, 1})));
  EXPECT_ERROR("positions: want 3", run(positions, 0));
  EXPECT_ERROR("rows: 3 at 1", run(&rlt_model_input::rows, ids({0, 3})));
  EXPECT_ERROR("rows: -1 at 0", run(&rlt_model_input::rows, ids({-1})));
  EXPECT_ERROR("rows: want", run(&rlt_model_input::rows, good.cu_seqlens));
  EXPECT_ERROR("noise: want [3, 20]", run(&rlt_model_input::noise, a));
  EXPECT_ERROR("routes: want int32", run(&rlt_model_input::routes, a));
  EXPECT_ERROR("routes: 0 at 0 is not in [-1, 0)", run(&rlt_model_input::routes, good.cu_seqlens));
  EXPECT_ERROR("run from 0 to 3", run(cu, h.give(rlt::test::borders({2}))));
  EXPECT_ERROR("run from 0 to 3", run(cu, h.give(rlt::test::borders({2, 3}))));
  EXPECT_ERROR("falls", run(cu, h.give(rlt::test::vector_of<int32_t>({0, 4, 3}))));
  EXPECT_ERROR("int32", run(cu, ids({0, 3})));
  EXPECT_ERROR("", run(cu, 0));
  rlt_model_input input = good;
  for (const double p : {1.0, 1.5, -0.5, static_cast<double>(NAN)}) {
    input.dropout = p;
    input.row_keys = ids({1, 2, 3});
    EXPECT_ERROR("[0, 1)", rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden, nullptr));
  }
  input.dropout = 0.5;
  for (const rlt_tensor keys : {rlt_tensor{0}, ids({1, 2}), good.cu_seqlens}) {
    input.row_keys = keys;
    EXPECT_ERROR("row_keys", rlt_model_forward(m.model, RLT_TRAIN, &input, &hidden, nullptr));
  }
  EXPECT_EQUAL(hidden, rlt_tensor{0});
}

TEST(abi_model_new_refuses_bad_configs) {
  const NoLeaks check;
  rlt_model* model = nullptr;
  rlt::test::Shape shape = rlt::test::shape("bert", rlt::test::post_norm);
  EXPECT_ERROR("embed.weight is missing", rlt_model_new(&shape.config(), nullptr, nullptr, 0, &model));
  rlt_model_config config = shape.config();
  config.heads = 7;
  EXPECT_ERROR("heads", rlt_model_new(&config, nullptr, nullptr, 0, &model));
  Random random(63);
  Handles h;
  std::vector<const char*> names;
  std::vector<rlt_tensor> tensors;
  const rlt::nn::Weights weights = rlt::test::random_weights(random, shape);
  for (const auto& [name, w] : weights) {
    names.push_back(name.c_str());
    tensors.push_back(h.give(w));
  }
  const auto n = static_cast<int32_t>(names.size());
  for (const int64_t layers : {int64_t{-1}, INT64_MIN, int64_t{1}}) {
    config = shape.config();
    config.layers = layers;
    EXPECT_ERROR("", rlt_model_new(&config, names.data(), tensors.data(), n, &model));
  }
  EXPECT(model == nullptr);
  rlt_model_free(nullptr);
}

TEST(abi_decoder) {
  const NoLeaks check;
  Random random(64);
  rlt::test::Shape shape("llama");
  Handles h;
  std::vector<const char*> names;
  std::vector<rlt_tensor> tensors;
  const rlt::nn::Weights weights = rlt::test::random_weights(random, shape);
  for (const auto& [name, w] : weights) {
    names.push_back(name.c_str());
    tensors.push_back(h.give(w));
  }
  const auto n = static_cast<int32_t>(names.size());
  rlt_model* model = nullptr;
  EXPECT_ERROR("embed.weight is missing", rlt_model_new(&shape.config(), nullptr, nullptr, 0, &model));
  EXPECT_OK(rlt_model_new(&shape.config(), names.data(), tensors.data(), n, &model));
  const rlt_tensor a = h.give(random.normal({2, 20}).requires_grad_(true)),
                   b = h.give(random.normal({24, 2}).requires_grad_(true));
  EXPECT_OK(rlt_model_adapt(model, "layers.0.q", a, b, 0, 2));
  EXPECT_ERROR("no linear layer", rlt_model_adapt(model, "layers.0.query", a, b, 0, 2));

  rlt_model_input input{};
  input.tokens = h.give(rlt::test::vector_of<int64_t>({0, 30, 3}));
  input.positions = h.give(rlt::test::vector_of<int64_t>({0, 1, 0}));
  input.cu_seqlens = h.give(rlt::test::borders({2, 1}));
  input.adapter = 1;
  rlt_tensor plain = 0, again = 0;
  EXPECT_OK(rlt_model_forward(model, RLT_TRAIN, &input, &plain, nullptr));
  input.checkpoint = 1;
  EXPECT_OK(rlt_model_forward(model, RLT_TRAIN, &input, &again, nullptr));
  EXPECT(rlt::borrow(again).requires_grad());
  EXPECT_EQUAL(rlt::borrow(again).sizes(), c10::IntArrayRef({3, 20}));
  EXPECT(rlt::test::same_bits(rlt::borrow(plain), rlt::borrow(again)));
  // The graph outlives the model.
  rlt_model_free(model);
  rlt::borrow(again).sum().backward();
  EXPECT(rlt::borrow(a).grad().defined());
  rlt_tensor_free(&plain, 1);
  rlt_tensor_free(&again, 1);
}

TEST(abi_engine_needs_a_model_that_generates) {
  const NoLeaks check;
  Random random(66);
  Model m(random);
  rlt_engine* engine = nullptr;
  EXPECT_ERROR("does not generate", rlt_engine_new(m.model, 1, nullptr, 0, &engine));
  EXPECT(engine == nullptr);
  rlt_engine_free(nullptr);
}

}  // namespace
