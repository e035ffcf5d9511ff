#include "ops/cpu/bf16.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/kernels.h"
#include "kernels/parallel.h"
#include "kernels/tiles.h"

namespace rlt {

bool multiplies_bf16(const at::Tensor& w) {
  return w.scalar_type() == at::kBFloat16 && kernels().multiply_pairs;
}

at::Tensor empty_rounded(int64_t rows, int64_t n) {
  return at::empty({rows, 2 * words_of(n)}, at::kBFloat16);
}

void round_rows_into(const at::Tensor& rounded, int64_t row, int64_t count, const Matrix& x, int64_t n) {
  round_rows(count, n, x, static_cast<uint16_t*>(rounded.mutable_data_ptr()) + row * rounded.size(1));
}

at::Tensor rounded_rows(const at::Tensor& x) {
  const int64_t n = x.size(1);
  at::Tensor rounded = empty_rounded(x.size(0), n);
  const float* const from = x.const_data_ptr<float>();
  parallel_for(0, x.size(0), grain(n), [&](int64_t begin, int64_t end) {
    round_rows_into(rounded, begin, end - begin, {from + begin * n, n}, n);
  });
  return rounded;
}

Epilogue::Epilogue(char trans, int64_t column, int64_t rank, int64_t n, Matrix from, float scale)
    : b(packed_size(rank, n)) {
  if (rank > 0) pack(trans, rank, n, from, b.data(), scale);
  for (int64_t p = 0; p < panels_of(n); ++p) shares.push_back({column, rank, p * rank * kPanel});
  low = {rank, nullptr, shares.data(), b.data()};
}

namespace {

// op(w) as panels that each thread packs where it multiplies by them.
Group panels_of_weight(char trans, const at::Tensor& w) {
  const int64_t k = w.size(trans == 'T' ? 1 : 0), n = w.size(trans == 'T' ? 0 : 1);
  Group g;
  g.element = Element::kBF16;
  g.in = k;
  g.panels = panels_of(n);
  g.unpack = [=, from = rows_of_bf16(w, 0)](int64_t begin, int64_t end, void* panels) {
    const int64_t column = begin * kPanel;
    pack_pairs(trans, k, std::min(end * kPanel, n) - column,
               {from.data + (trans == 'T' ? column * from.stride : column), from.stride},
               static_cast<float*>(panels));
  };
  return g;
}

}  // namespace

at::Tensor bf16_product(char trans, const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias,
                        const AdapterRows& adapter, at::Tensor sum) {
  const int64_t rows = x.size(0), n = w.size(trans == 'T' ? 0 : 1);
  Group g = panels_of_weight(trans, w);
  const int64_t width = g.panels * kPanel;
  if (width != n && sum.defined()) return sum.add_(bf16_product(trans, x, w, bias, adapter, {}));
  at::Tensor y = sum.defined() ? sum : at::empty({rows, width}, at::kFloat), padded;
  if (bias) {
    padded = *bias;
    if (width != n) {
      padded = at::zeros({width}, at::kFloat);
      padded.narrow(0, 0, n).copy_(*bias);
    }
    padded = padded.contiguous();
    g.bias = padded.const_data_ptr<float>();
  }
  Finish finish;
  float* const out = y.mutable_data_ptr<float>();
  if (sum.defined()) finish.residual = {out, width};
  std::vector<AdaptedRows> adapted;
  if (adapter.u != nullptr) adapted.push_back({0, rows, &adapter.epilogue->low});
  const Matrix words{static_cast<const float*>(x.const_data_ptr()), x.size(1) / 2};
  multiply_prepared(rows, {words, adapter.u, adapter.stride}, g, adapted, finish, out, width);
  return width == n ? y : y.narrow(1, 0, n).contiguous();
}

}  // namespace rlt
