// What an adapter adds to a linear layer. Its products are so thin that they wait for memory, so a block of
// rows goes through all of them while it is in the caches.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/buffer.h"
#include "kernels/gemm.h"
#include "kernels/parallel.h"
#include "ops/cpu/low_rank.h"

namespace rlt {
namespace {

constexpr int64_t kBlock = 48;  // rows

// Panels with the memory that they lie in.
struct Packed {
  Buffer<float> data;
  Panels panels;

  Packed(char trans, int64_t k, int64_t n, Matrix b, float scale = 1)
      : data(packed_size(k, n)), panels(pack(trans, k, n, b, data.data(), scale)) {}
};

Matrix dense(const at::Tensor& t) { return {t.const_data_ptr<float>(), t.size(1)}; }
Matrix rows_from(const Matrix& m, int64_t row) { return {m.data + row * m.stride, m.stride}; }

// c [r, n] += zᵀ x for z [rows, r] and x [rows, n].
void add_outer(int64_t rows, int64_t r, int64_t n, Matrix z, Matrix x, float* c) {
  if (n % 16 != 0) return gemm('T', 'N', r, n, rows, z, x, c, n, true);
  static thread_local Buffer<float> turned;
  turned.reserve(r * kBlock);
  transpose(rows, r, z, turned.data(), kBlock);
  multiply(r, n, rows, {turned.data(), kBlock}, in_place(x), c, n, true);
}

// Calls f(row, rows) for the blocks of [begin, end).
template <typename F>
void for_blocks(int64_t begin, int64_t end, const F& f) {
  for (int64_t row = begin; row < end; row += kBlock) f(row, std::min(kBlock, end - row));
}

}  // namespace

at::Tensor add_low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b, double scale,
                        at::Tensor& y) {
  const int64_t in = a.size(1), r = a.size(0), out = b.size(0);
  at::Tensor low = at::empty({x.size(0), r}, x.options());
  const Packed by_a('T', in, r, dense(a)), by_b('T', r, out, dense(b), static_cast<float>(scale));
  const Matrix xs = dense(x);
  float *lows = low.mutable_data_ptr<float>(), *ys = y.mutable_data_ptr<float>();
  parallel_for(0, x.size(0), grain(r * (in + out)), [&](int64_t begin, int64_t end) {
    for_blocks(begin, end, [&](int64_t row, int64_t rows) {
      multiply(rows, r, in, rows_from(xs, row), by_a.panels, lows + row * r, r);
      multiply(rows, out, r, {lows + row * r, r}, by_b.panels, ys + row * out, out, true);
    });
  });
  return low;
}

std::tuple<at::Tensor, at::Tensor> low_rank_grads(const at::Tensor& grad, const at::Tensor& x,
                                                  const at::Tensor& low, const at::Tensor& a,
                                                  const at::Tensor& b, double scale, at::Tensor* grad_x) {
  const int64_t n = x.size(0), in = a.size(1), r = a.size(0), out = b.size(0);
  const Packed by_b('N', out, r, dense(b), static_cast<float>(scale)), by_a('N', r, in, dense(a));
  const Matrix gs = dense(grad), xs = dense(x), lows = dense(low);
  float* gx = grad_x == nullptr ? nullptr : grad_x->mutable_data_ptr<float>();
  // A thread sums over its own rows, and the threads' sums are added in order.
  const int64_t parts = std::clamp<int64_t>(n / kBlock, 1, thread_count());
  at::Tensor a_sums = at::zeros({parts, r, in}, x.options()),
             b_sums = at::zeros({parts, r, out}, x.options());
  parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    Buffer<float> grad_low(kBlock * r);
    for (int64_t part = first; part < last; ++part) {
      float* const a_sum = a_sums.mutable_data_ptr<float>() + part * r * in;
      float* const b_sum = b_sums.mutable_data_ptr<float>() + part * r * out;
      for_blocks(n * part / parts, n * (part + 1) / parts, [&](int64_t row, int64_t rows) {
        const Matrix g = rows_from(gs, row), u{grad_low.data(), r};
        multiply(rows, r, out, g, by_b.panels, grad_low.data(), r);
        add_outer(rows, r, out, rows_from(lows, row), g, b_sum);
        add_outer(rows, r, in, u, rows_from(xs, row), a_sum);
        if (gx != nullptr) multiply(rows, in, r, u, by_a.panels, gx + row * in, in, true);
      });
    }
  });
  return {a_sums.sum(0), b_sums.sum(0).t().mul(scale).contiguous()};
}

}  // namespace rlt
