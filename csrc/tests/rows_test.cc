// The row kernels of the chosen instruction set.
#include "kernels/kernels.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/parallel.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double ulp(double value) {
  const auto f = static_cast<float>(value);
  return std::nextafter(f, kInfinity) - f;
}

std::vector<float> exps(std::vector<float> x, float scale = 1, float lse = 0) {
  rlt::kernels().exp(x.data(), static_cast<int64_t>(x.size()), scale, lse);
  return x;
}

TEST(exp_is_close_to_std_exp_over_its_range) {
  std::vector<float> x;
  for (double v = -87; v <= 88; v += 0.000173) x.push_back(static_cast<float>(v));
  const std::vector<float> y = exps(x);
  double worst = 0, at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    const double error = std::abs(y[i] - want) / ulp(want);
    if (!(error <= worst)) worst = error, at = x[i];
  }
  EXPECT_AT_MOST(worst, 3.1, "ulps of exp at " + std::to_string(at));
}

TEST(exp_outside_of_its_range) {
  const float lowest = std::numeric_limits<float>::lowest();
  for (const float y : exps({-87.01f, -100, -1e4f, -1e30f, lowest, -kInfinity})) EXPECT_EQUAL(y, 0.0f);
  for (const float y : exps({88, 89, 1e30f, kInfinity})) {
    EXPECT(std::isfinite(y) && y > 1e38f);
  }
  EXPECT(std::isnan(exps({std::nanf("")})[0]));
  EXPECT_EQUAL(exps({0})[0], 1.0f);
  EXPECT_EQUAL(exps({-0.0f})[0], 1.0f);
}

TEST(exp_scales_and_shifts) {
  for (const float x : {-3.0f, 0.0f, 0.25f, 7.5f}) {
    const double want = std::exp(0.125 * x - 2.5);
    EXPECT_AT_MOST(std::abs(exps({x}, 0.125f, 2.5f)[0] - want) / want, 5e-7, "exp(x/8 - 2.5)");
  }
}

TEST(exp_does_not_depend_on_the_place_in_the_row) {
  for (int n : {1, 7, 8, 15, 16, 17, 33}) {
    const std::vector<float> y = exps(std::vector<float>(static_cast<size_t>(n), -1.7f));
    for (const float v : y) EXPECT_EQUAL(v, y[0]);
  }
}

TEST(softmax_is_softmax_and_log_sum_exp) {
  const float lowest = std::numeric_limits<float>::lowest();
  for (const int n : {1, 2, 15, 16, 17, 31, 32, 33, 500}) {
    for (const double spread : {0.0, 1.0, 30.0, 1000.0}) {
      for (const float masked : {0.0f, -kInfinity, lowest}) {
        std::vector<float> x;
        for (int i = 0; i < n; ++i) x.push_back(static_cast<float>(spread * std::sin(12.9898 * (i + 1))));
        if (masked != 0) {
          for (int i = 1; i < n; i += 3) x[static_cast<size_t>(i)] = masked;
        }
        const float scale = 0.25f;
        double peak = -INFINITY, sum = 0;
        for (const float v : x) peak = std::max(peak, static_cast<double>(v) * scale);
        for (const float v : x) sum += std::exp(static_cast<double>(v) * scale - peak);
        std::vector<float> y = x;
        float top;
        const float total = rlt::kernels().softmax(y.data(), n, scale, &top);
        const double lse = scale * top + std::log(total);
        for (float& v : y) v /= total;
        const std::string at = "n " + std::to_string(n) + ", spread " + std::to_string(spread);
        EXPECT_AT_MOST(std::abs(lse - (peak + std::log(sum))), 1e-6 * (1 + spread), "lse at " + at);
        double worst = 0, mass = 0;
        for (size_t i = 0; i < y.size(); ++i) {
          const double want = std::exp(static_cast<double>(x[i]) * scale - peak) / sum;
          worst = std::max(worst, std::abs(y[i] - want));
          mass += y[i];
          if (x[i] <= lowest) EXPECT_EQUAL(y[i], 0.0f);
        }
        EXPECT_AT_MOST(worst, 2e-6 * (1 + spread / 100), "softmax at " + at);
        EXPECT_AT_MOST(std::abs(mass - 1), 1e-6, "sum of softmax at " + at);
      }
    }
  }
}

TEST(softmax_keeps_nan_visible) {
  std::vector<float> x(20, 1.0f);
  x[3] = std::nanf("");
  float top;
  EXPECT(std::isnan(rlt::kernels().softmax(x.data(), 20, 1, &top)));
}

// Padding of the last vector must never count as a logit, even if the threshold is -∞.
TEST(moments_count_the_logits_alone) {
  for (const int64_t n : {1, 5, 16, 21}) {
    std::vector<float> z(static_cast<size_t>(n), -2.0f);
    const rlt::Moments m = rlt::kernels().moments(z.data(), n, -2.0f, -kInfinity, 0.5f);
    EXPECT_EQUAL(m.above, n);
    EXPECT_EQUAL(m.sum, static_cast<float>(n));
    EXPECT_EQUAL(m.weighted, 0.0f);
    for (const float v : z) EXPECT_EQUAL(v, -1.0f);  // exp(0) · (1 - ½ · 4)
  }
}

TEST(small_rows_by_hand) {
  const float x[] = {1, 2, 3}, y[] = {4, -5, 6};
  EXPECT_EQUAL(rlt::kernels().dot(x, y, 3), 12.0f);
  EXPECT_EQUAL(rlt::kernels().dot(x, y, 0), 0.0f);
  float sum[] = {10, 20, 30};
  rlt::kernels().add_scaled(1, x, sum, 3);
  EXPECT(sum[0] == 11 && sum[1] == 22 && sum[2] == 33);
  rlt::kernels().scale(x, -2, sum, 3);
  EXPECT(sum[0] == -2 && sum[1] == -4 && sum[2] == -6);
  // dp = scale · p (dp - delta)
  float dp[] = {1, 2};
  const float p[] = {0.25f, 0.75f};
  rlt::kernels().softmax_backward(dp, p, 2, 1.5f, 2);
  EXPECT(dp[0] == -0.25f && dp[1] == 0.75f);
}

TEST(grain_is_at_least_a_row) {
  EXPECT_EQUAL(rlt::grain(0), 16384);
  EXPECT_EQUAL(rlt::grain(384), 42);
  EXPECT_EQUAL(rlt::grain(1 << 20), 1);
}

}  // namespace
