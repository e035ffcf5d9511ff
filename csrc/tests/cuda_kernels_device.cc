// CUDA kernels against their host reference loops. Also covers results in two-byte types and null arguments,
// which the operators never use.
#include <ATen/ops/empty.h>

#include <string>
#include <vector>

#include "check.h"
#include "cuda/kernels/stream.h"
#include "ops/product.h"
#include "rltrain.h"
#include "support.h"

// CMakeLists.txt compiles the reference loops in this namespace.
#undef RLT_CUDA_KERNELS_H
#define cuda reference
#include "cuda/kernels/kernels.h"
#undef cuda

namespace {

using rlt::test::Random;
using rlt::test::relative;

constexpr int64_t kRows = 37;

struct Kind {
  at::ScalarType type;
  rlt::cuda::Type kernels;
  rlt::reference::Type loops;
  double limit;  // rounding to the type may differ
};
const std::vector<Kind> kKinds{{at::kFloat, rlt::cuda::Type::kF32, rlt::reference::Type::kF32, 2e-6},
                               {at::kBFloat16, rlt::cuda::Type::kBF16, rlt::reference::Type::kBF16, 8e-3},
                               {at::kHalf, rlt::cuda::Type::kF16, rlt::reference::Type::kF16, 1e-3}};
// Widths with and without packs of four, for one warp or one block, and more than a block reads at once.
const std::vector<int64_t> kWidths{40, 30, 1, 1024, 2048, 2050, 5000};

// The same values on the host and on the device.
struct Both {
  at::Tensor host, device;

  explicit Both(const at::Tensor& t)
      : host(t), device(t.to(rlt::test::device(), t.scalar_type(), /*non_blocking=*/false, /*copy=*/true)) {}
  const float* on_host() const { return host.const_data_ptr<float>(); }
  const float* on_device() const { return device.const_data_ptr<float>(); }
};

// An uninitialised result on both sides.
Both result(int64_t width, at::ScalarType type) {
  return Both(at::empty({kRows, width}, at::TensorOptions(type)));
}

void expect_same(const Both& y, double limit, const std::string& what, int64_t width) {
  EXPECT_AT_MOST(relative(y.device.cpu(), y.host), limit,
                 what + " of " + c10::toString(y.host.scalar_type()) + " at " + std::to_string(width));
}

rlt::cuda::Stream stream() { return rlt::cuda::current_stream(rlt::test::device()); }

TEST(device_norms_give_every_type) {
  Random random(1);
  for (const Kind& kind : kKinds) {
    for (const int64_t width : kWidths) {
      const Both x(random.normal({kRows, width + 4})), more(random.normal({kRows, width})),
          w(random.normal({width})), b(random.normal({width}));
      const int64_t stride = width + 4;
      for (const bool plus_one : {false, true}) {
        const Both y = result(width, kind.type);
        rlt::cuda::rms_norm(stream(), {x.on_device(), stride}, w.on_device(), plus_one, 1e-5,
                            y.device.mutable_data_ptr(), kind.kernels, nullptr, kRows, width);
        rlt::reference::rms_norm(nullptr, {x.on_host(), stride}, w.on_host(), plus_one, 1e-5,
                                 y.host.mutable_data_ptr(), kind.loops, nullptr, kRows, width);
        expect_same(y, kind.limit, "rms_norm", width);
      }
      if (width == 1) continue;  // the gradient of a single feature is only rounding error
      for (const bool residual : {false, true}) {
        const Both y = result(width, kind.type);
        rlt::cuda::layer_norm(stream(), {x.on_device(), stride}, residual ? more.on_device() : nullptr,
                              w.on_device(), b.on_device(), 1e-5, y.device.mutable_data_ptr(), kind.kernels,
                              nullptr, nullptr, nullptr, kRows, width);
        rlt::reference::layer_norm(nullptr, {x.on_host(), stride}, residual ? more.on_host() : nullptr,
                                   w.on_host(), b.on_host(), 1e-5, y.host.mutable_data_ptr(), kind.loops,
                                   nullptr, nullptr, nullptr, kRows, width);
        expect_same(y, kind.limit, "layer_norm", width);
      }
    }
  }
}

TEST(device_gates_give_every_type) {
  Random random(2);
  for (const Kind& kind : kKinds) {
    for (const int64_t width : kWidths) {
      const Both both(random.normal({kRows, 2 * width}, 3));
      for (int32_t activation = RLT_ACT_SILU; activation <= RLT_ACT_RELU; ++activation) {
        for (const bool alone : {false, true}) {
          const Both y = result(width, kind.type);
          const int64_t stride = 2 * width;
          rlt::cuda::gated(stream(), {both.on_device(), stride},
                           {alone ? nullptr : both.on_device() + width, stride}, activation,
                           y.device.mutable_data_ptr(), kind.kernels, kRows, width);
          rlt::reference::gated(nullptr, {both.on_host(), stride},
                                {alone ? nullptr : both.on_host() + width, stride}, activation,
                                y.host.mutable_data_ptr(), kind.loops, kRows, width);
          expect_same(y, kind.limit, "activation " + std::to_string(activation), width);
        }
      }
    }
  }
}

TEST(device_gradients_are_the_loops) {
  Random random(5);
  for (const int64_t width : kWidths) {
    if (width == 1) continue;  // the gradient of a single feature is only rounding error
    const int64_t stride = 2 * width + 4;
    const Both x(random.normal({kRows, stride})), grad(random.normal({kRows, stride})),
        w(random.normal({width})), dense(random.normal({kRows, width})), sum(random.normal({kRows, width})),
        mean(random.normal({kRows})), rstd(random.normal({kRows}, 0.1, 1));
    const auto to = [](const Both& y) { return y.device.mutable_data_ptr<float>(); };
    const auto loop = [](const Both& y) { return y.host.mutable_data_ptr<float>(); };
    const Both norm = result(width, at::kFloat), layer = result(width, at::kFloat);
    rlt::cuda::rms_norm_backward(stream(), {grad.on_device(), stride}, {x.on_device(), stride}, w.on_device(),
                                 true, rstd.on_device(), to(norm), kRows, width);
    rlt::reference::rms_norm_backward(nullptr, {grad.on_host(), stride}, {x.on_host(), stride}, w.on_host(),
                                      true, rstd.on_host(), loop(norm), kRows, width);
    expect_same(norm, 5e-6, "rms_norm_backward", width);
    rlt::cuda::layer_norm_backward(stream(), dense.on_device(), sum.on_device(), w.on_device(),
                                   mean.on_device(), rstd.on_device(), to(layer), kRows, width);
    rlt::reference::layer_norm_backward(nullptr, dense.on_host(), sum.on_host(), w.on_host(), mean.on_host(),
                                        rstd.on_host(), loop(layer), kRows, width);
    expect_same(layer, 5e-6, "layer_norm_backward", width);
    for (int32_t activation = RLT_ACT_SILU; activation <= RLT_ACT_RELU; ++activation) {
      const Both gate = result(width, at::kFloat), up = result(width, at::kFloat);
      rlt::cuda::gated_backward(stream(), dense.on_device(), {x.on_device(), stride},
                                {x.on_device() + width, stride}, activation, to(gate), to(up), kRows, width);
      rlt::reference::gated_backward(nullptr, dense.on_host(), {x.on_host(), stride},
                                     {x.on_host() + width, stride}, activation, loop(gate), loop(up), kRows,
                                     width);
      expect_same(gate, 5e-6, "gate of activation " + std::to_string(activation), width);
      expect_same(up, 5e-6, "up of activation " + std::to_string(activation), width);
    }
  }
}

TEST(device_rotations_and_masks_are_the_loops) {
  Random random(6);
  for (const int64_t head_dim : {64, 10, 9}) {
    for (const int64_t half : {head_dim / 2, head_dim / 4}) {
      const int64_t heads = 3, stride = heads * head_dim + 4;
      const Both x(random.normal({kRows, stride})), cos(random.normal({kRows, half})),
          sin(random.normal({kRows, half}));
      for (const bool inverse : {false, true}) {
        const Both y = result(heads * head_dim, at::kFloat);
        rlt::cuda::rope(stream(), {x.on_device(), stride}, cos.on_device(), sin.on_device(), inverse,
                        y.device.mutable_data_ptr<float>(), kRows, heads, head_dim, half);
        rlt::reference::rope(nullptr, {x.on_host(), stride}, cos.on_host(), sin.on_host(), inverse,
                             y.host.mutable_data_ptr<float>(), kRows, heads, head_dim, half);
        expect_same(y, 1e-6, "rope of " + std::to_string(half), head_dim);
      }
    }
  }
  at::Tensor words = at::empty({kRows}, at::kLong);
  for (int64_t i = 0; i < kRows; ++i) words.mutable_data_ptr<int64_t>()[i] = random.word();
  const Both keys(words);
  for (const int64_t width : kWidths) {
    const Both x(random.normal({kRows, width})), y = result(width, at::kFloat);
    rlt::cuda::hash_dropout(stream(), x.on_device(), keys.device.const_data_ptr<int64_t>(), 11, 0.3,
                            y.device.mutable_data_ptr<float>(), kRows, width);
    rlt::reference::hash_dropout(nullptr, x.on_host(), keys.host.const_data_ptr<int64_t>(), 11, 0.3,
                                 y.host.mutable_data_ptr<float>(), kRows, width);
    EXPECT(rlt::test::same_bits(y.device.cpu(), y.host));
  }
}

// libtorch's two-byte products with float32 results, against sums in double. The destination may be strided.
TEST(device_products_have_sums_of_float32) {
  Random random(7);
  for (const Kind& kind : kKinds) {
    for (const int64_t rows : {1, 2, 37, 300}) {
      for (const int64_t in : {64, 30, 1}) {
        for (const int64_t out : {1, 8, 30, 513}) {
          const at::Tensor x = random.normal({rows, in}).to(kind.type).to(at::kFloat),
                           w = random.normal({out, in}).to(kind.type), more = random.normal({rows, out + 3}),
                           back = random.normal({rows, out}).to(kind.type).to(at::kFloat);
          const auto there = [](const at::Tensor& t) { return t.to(rlt::test::device()); };
          const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
          const std::string what = std::string(" of ") + c10::toString(kind.type) + " [" +
                                   std::to_string(rows) + ", " + std::to_string(in) + "] [" +
                                   std::to_string(out) + "]";
          const at::Tensor want = wide(x).mm(wide(w).t());
          EXPECT_AT_MOST(relative(rlt::product(there(x), there(w)).cpu(), want), 2e-5, "product" + what);
          EXPECT_AT_MOST(relative(rlt::product_back(there(back), there(w)).cpu(), wide(back).mm(wide(w))),
                         2e-5, "product_back" + what);
          for (const bool gaps : {false, true}) {
            const at::Tensor all = there(more);
            at::Tensor y = gaps ? all.narrow(1, 1, out) : all.narrow(1, 1, out).contiguous();
            const at::Tensor sum = wide(more.narrow(1, 1, out)).add(want, 0.5);
            rlt::product_into(y, there(x), there(w), 0.5);
            EXPECT_AT_MOST(relative(y.cpu(), sum), 2e-5, "product_into" + what);
            if (gaps) EXPECT(all.cpu().select(1, 0).equal(more.select(1, 0)));
          }
        }
      }
    }
  }
}

// The gradient overwrites the logits in place, in a smaller type.
TEST(device_slopes_give_every_type) {
  Random random(3);
  for (const Kind& kind : kKinds) {
    for (const int64_t vocab : {1, 40, 30, 4096, 4097, 50001, 50004}) {
      const Both logits(random.normal({kRows, vocab}, 3)), lse(random.normal({kRows}, 1, 12)),
          entropy(random.normal({kRows}, 1, 5)), by_logprob(random.normal({kRows})),
          by_entropy(random.normal({kRows}));
      const at::Tensor targets = random.ints(kRows, vocab), there = targets.to(rlt::test::device());
      for (const bool plain : {false, true}) {
        const Both z(logits.host.clone());
        rlt::cuda::token_logprobs_slope(stream(), z.device.mutable_data_ptr<float>(),
                                        there.const_data_ptr<int64_t>(), 0.7, 5, lse.on_device(),
                                        entropy.on_device(), plain ? nullptr : by_logprob.on_device(),
                                        plain ? nullptr : by_entropy.on_device(), kind.kernels, kRows, vocab);
        rlt::reference::token_logprobs_slope(
            nullptr, z.host.mutable_data_ptr<float>(), targets.const_data_ptr<int64_t>(), 0.7, 5,
            lse.on_host(), entropy.on_host(), plain ? nullptr : by_logprob.on_host(),
            plain ? nullptr : by_entropy.on_host(), kind.loops, kRows, vocab);
        const auto part = [&](const at::Tensor& t) { return t.view(kind.type).narrow(1, 0, vocab); };
        EXPECT_AT_MOST(relative(part(z.device).cpu(), part(z.host)), std::max(kind.limit, 1e-5),
                       std::string("slopes of ") + c10::toString(kind.type) + " at " + std::to_string(vocab));
      }
    }
  }
}

// A batch of rows over a vocabulary of realistic size.
TEST(device_logprobs_of_large_vocabularies) {
  Random random(4);
  for (const int64_t vocab : {151936, 49153}) {
    const Both logits(random.normal({kRows, vocab}, 4));
    const at::Tensor targets = random.ints(kRows, vocab), there = targets.to(rlt::test::device());
    const Both logprobs(at::empty({kRows})), entropy(at::empty({kRows})), lse(at::empty({kRows}));
    const Both rank(at::empty({kRows}, at::kLong));
    rlt::cuda::token_logprobs(
        stream(), logits.on_device(), there.const_data_ptr<int64_t>(), 1.3, 0,
        logprobs.device.mutable_data_ptr<float>(), entropy.device.mutable_data_ptr<float>(),
        rank.device.mutable_data_ptr<int64_t>(), lse.device.mutable_data_ptr<float>(), kRows, vocab);
    rlt::reference::token_logprobs(
        nullptr, logits.on_host(), targets.const_data_ptr<int64_t>(), 1.3, 0,
        logprobs.host.mutable_data_ptr<float>(), entropy.host.mutable_data_ptr<float>(),
        rank.host.mutable_data_ptr<int64_t>(), lse.host.mutable_data_ptr<float>(), kRows, vocab);
    expect_same(logprobs, 1e-6, "log-probabilities", vocab);
    expect_same(entropy, 5e-6, "entropies", vocab);
    expect_same(lse, 1e-6, "sums", vocab);
    // Division by the temperature may round two logits to the same number.
    EXPECT_AT_MOST(rlt::test::distance(rank.device.cpu(), rank.host), 1, "ranks");
  }
}

}  // namespace
