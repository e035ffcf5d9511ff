#include "kernels/gemm.h"

#include <ATen/ops/matmul.h>

#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/tiles.h"
#include "support.h"

namespace {

using rlt::Matrix;
using rlt::test::Random;

// op(x)[i][j]
double at(char trans, const Matrix& x, int64_t i, int64_t j) {
  return trans == 'T' ? x.data[j * x.stride + i] : x.data[i * x.stride + j];
}

TEST(gemm_equals_sums_in_double) {
  struct Case {
    int64_t m, n, k;
  };
  Random random(41);
  for (const Case c : {Case{1, 1, 1}, Case{6, 16, 4}, Case{13, 37, 29}, Case{32, 64, 48}, Case{5, 200, 700},
                       Case{3, 20, 0}}) {
    for (const char trans_a : {'N', 'T'}) {
      for (const char trans_b : {'N', 'T'}) {
        for (const bool add : {false, true}) {
          // Rows are three elements apart, and the gaps between the rows of the result must not change.
          const int64_t stride = std::max({c.m, c.n, c.k}) + 3;
          const at::Tensor a = random.normal({stride, stride}), b = random.normal({stride, stride}),
                           before = random.normal({c.m, stride}), after = before.clone();
          const Matrix am{a.const_data_ptr<float>(), stride}, bm{b.const_data_ptr<float>(), stride};
          rlt::gemm(trans_a, trans_b, c.m, c.n, c.k, am, bm, after.mutable_data_ptr<float>(), stride, add);
          double worst = 0;
          for (int64_t i = 0; i < c.m; ++i) {
            for (int64_t j = 0; j < stride; ++j) {
              const double old = before.const_data_ptr<float>()[i * stride + j];
              double want = j < c.n && !add ? 0 : old;
              for (int64_t k = 0; j < c.n && k < c.k; ++k)
                want += at(trans_a, am, i, k) * at(trans_b, bm, k, j);
              worst = std::max(worst, std::abs(after.const_data_ptr<float>()[i * stride + j] - want));
            }
          }
          EXPECT_AT_MOST(worst, 2e-6 * (4 + static_cast<double>(c.k)),
                         std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " " +
                             trans_a + trans_b + (add ? ", added" : ""));
        }
      }
    }
  }
}

// All values are exact in bfloat16. The gaps between rows, and the padding of an odd k, must not affect the
// result.
TEST(gemm_of_bfloat16_equals_sums_in_double) {
  struct Case {
    int64_t m, n, k;
  };
  if (!rlt::kernels().multiply_pairs) return;
  Random random(43);
  for (const Case c : {Case{1, 1, 2}, Case{6, 16, 4}, Case{13, 37, 29}, Case{32, 64, 48}, Case{5, 200, 701},
                       Case{200, 90, 1}, Case{3, 20, 0}}) {
    for (const char trans : {'N', 'T'}) {
      for (const bool add : {false, true}) {
        const int64_t whole_k = 2 * rlt::words_of(c.k),
                      stride = std::max({c.m, c.n, whole_k}) / 2 * 2 + 3 * (c.k % 2) + 4;
        at::Tensor a = random.normal({c.m, stride + stride % 2}).to(at::kBFloat16);
        a.narrow(1, c.k, whole_k - c.k).zero_();
        const at::Tensor b = random.normal({stride, stride}).to(at::kBFloat16),
                         before = random.normal({c.m, c.n}), after = before.clone();
        const auto halves = [&](const at::Tensor& t) {
          return rlt::Matrix16{static_cast<const uint16_t*>(t.const_data_ptr()), t.size(1)};
        };
        rlt::gemm_pairs(trans, c.m, c.n, c.k, halves(a), halves(b), after.mutable_data_ptr<float>(), c.n,
                        add);
        const at::Tensor x = a.narrow(1, 0, c.k).to(at::kDouble), whole = b.to(at::kDouble),
                         w = trans == 'T' ? whole.narrow(0, 0, c.n).narrow(1, 0, c.k).t()
                                          : whole.narrow(0, 0, c.k).narrow(1, 0, c.n);
        at::Tensor want = at::matmul(x, w);
        if (add) want = want.add(before);
        EXPECT_AT_MOST(
            rlt::test::distance(after, want), 2e-6 * (4 + static_cast<double>(c.k)),
            std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " " + trans);
      }
    }
  }
}

TEST(gemm_of_a_row_is_the_same_bits_in_any_block) {
  Random random(42);
  const int64_t m = 23, n = 50, k = 300;
  const at::Tensor a = random.normal({m, k}), b = random.normal({k, n});
  const at::Tensor all = at::empty({m, n}), one = at::empty({m, n});
  const float* rows = a.const_data_ptr<float>();
  const Matrix bm{b.const_data_ptr<float>(), n};
  rlt::gemm('N', 'N', m, n, k, {rows, k}, bm, all.mutable_data_ptr<float>(), n);
  for (int64_t i = 0; i < m; ++i) {
    rlt::gemm('N', 'N', 1, n, k, {rows + i * k, k}, bm, one.mutable_data_ptr<float>() + i * n, n);
  }
  EXPECT(all.equal(one));
}

}  // namespace
