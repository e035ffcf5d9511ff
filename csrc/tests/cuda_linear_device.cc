// Training linear layers on a GPU: gradients through autograd, also with two-byte weights, where layers with
// the same input share its rounded copy.
#include <string>
#include <vector>

#include "check.h"
#include "ops/linear.h"
#include "ops/packed.h"
#include "support.h"

namespace {

using rlt::test::borders;
using rlt::test::leaf;
using rlt::test::Random;
using rlt::test::relative;

constexpr int64_t kRows = 50, kIn = 64, kRank = 8;
const at::Device kGpu(at::kCUDA, 0);

struct Layer {
  at::Tensor w, a, b;
};

struct Inputs {
  at::Tensor x, keys;
  std::vector<Layer> layers;
};

Inputs draw(at::ScalarType type) {
  Random random(1);
  Inputs in{random.normal({kRows, kIn}), random.ints(kRows, 1000), {}};
  for (int i = 0; i < 3; ++i) {
    in.layers.push_back({random.normal({kIn, kIn}, 0.1).to(type), random.normal({kRank, kIn}, 0.1),
                         random.normal({kIn, kRank}, 0.1)});
  }
  return in;
}

// Runs queries, keys and values by three layers of x, attention, and a last layer. Returns the output, then
// the gradients of x and of every adapter, on the CPU.
std::vector<at::Tensor> learn(const Inputs& in, double p, const at::Device& device) {
  const at::Tensor x = leaf(in.x.to(device)), keys = in.keys.to(device);
  std::vector<at::Tensor> heads, learnt{x};
  for (size_t i = 0; i < in.layers.size(); ++i) {
    const Layer& layer = in.layers[i];
    const at::Tensor a = leaf(layer.a.to(device)), b = leaf(layer.b.to(device));
    heads.push_back(std::get<0>(rlt::lora_linear(x, layer.w.to(device), {}, a, b, 2, p,
                                                 rlt::OptionalTensor(keys), static_cast<int64_t>(i))));
    learnt.insert(learnt.end(), {a, b});
  }
  const at::Tensor y = std::get<0>(rlt::varlen_attention(heads[0], heads[1], heads[2], borders({20, 30}), 4,
                                                         0.25, true, 0, 0, {}, in.layers[0].w.scalar_type()));
  const at::Tensor last = rlt::linear(y, in.layers[0].w.to(device), {});
  last.backward(Random(2).normal({kRows, kIn}).to(device));
  std::vector<at::Tensor> found{last.detach().cpu()};
  for (const at::Tensor& t : learnt) found.push_back(t.grad().cpu());
  return found;
}

// Error limit of a type against float32, relative to the largest element, after four layers and attention.
struct Limit {
  at::ScalarType type;
  double limit;
};

TEST(device_layers_learn_what_the_cpus_do) {
  for (const Limit& of : {Limit{at::kFloat, 5e-5}, {at::kBFloat16, 4e-2}, {at::kHalf, 5e-3}}) {
    const Inputs in = draw(of.type);
    for (const double p : {0.0, 0.3}) {
      const auto want = learn(in, p, at::kCPU), got = learn(in, p, kGpu);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_AT_MOST(relative(got[i], want[i]), of.limit,
                       std::string(c10::toString(of.type)) + ", dropout " + std::to_string(p) + ", result " +
                           std::to_string(i));
      }
    }
  }
}

// A cached rounded copy of x is not reused after x has changed.
TEST(device_layers_see_a_changed_input) {
  const Inputs in = draw(at::kBFloat16);
  const Layer& layer = in.layers[0];
  const at::Tensor w = layer.w.to(kGpu), a = leaf(layer.a.to(kGpu)), b = leaf(layer.b.to(kGpu));
  at::Tensor x = in.x.to(kGpu);
  const auto y = [&] { return std::get<0>(rlt::lora_linear(x, w, {}, a, b, 2, 0, {}, 0)).detach().cpu(); };
  const at::Tensor first = y();
  x.neg_();
  EXPECT_AT_MOST(relative(y().neg(), first), 1e-6, "after a change");
  x = in.x.to(kGpu).mul(3);
  EXPECT_AT_MOST(relative(y().div(3), first), 1e-2, "another input");
}

}  // namespace
