// Activations of a training step do not fit the caches, so each pass over them costs as much as a product.
// One pass rounds the rows and multiplies them by all that adapters need of them; the products add biases,
// adapters and the gradients of other layers to a tile while it is at hand.
#include "ops/cpu/layers.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <deque>

#include "kernels/buffer.h"
#include "kernels/gemm.h"
#include "kernels/parallel.h"
#include "ops/cpu/bf16.h"

namespace rlt {
namespace {

constexpr int64_t kBlock = 48;  // rows of a pass that stay in the caches

// Panels and their memory.
struct Packed {
  Buffer<float> data;
  Panels panels;

  Packed(char trans, int64_t k, int64_t n, Matrix b, float scale = 1)
      : data(packed_size(k, n)), panels(pack(trans, k, n, b, data.data(), scale)) {}
};

Matrix dense(const at::Tensor& t) { return {t.const_data_ptr<float>(), t.stride(0)}; }
Matrix rows_from(const Matrix& m, int64_t row) { return {m.data + row * m.stride, m.stride}; }
Matrix columns_from(const Matrix& m, int64_t column) { return {m.data + column, m.stride}; }

// c [r, n] += zᵀ x for z [rows, r] and x [rows, n].
void add_outer(int64_t rows, int64_t r, int64_t n, Matrix z, Matrix x, float* c) {
  if (n % kPanel != 0) return gemm('T', 'N', r, n, rows, z, x, c, n, true);
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

// The adapters of layers side by side: where each one's columns of low begin, and how many there are.
struct Columns {
  std::vector<int64_t> of;
  int64_t all = 0;

  explicit Columns(const std::vector<AdaptedLinear>& layers) {
    for (const AdaptedLinear& l : layers) {
      of.push_back(all);
      all += l.rank();
    }
  }
  int64_t stride() const { return panels_of(all) * kPanel; }
};

// a of all adapters, [Σ r, in].
at::Tensor stacked_a(const std::vector<AdaptedLinear>& layers) {
  std::vector<at::Tensor> parts;
  for (const AdaptedLinear& l : layers) {
    if (l.rank() > 0) parts.push_back(l.a.detach().contiguous());
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

at::Tensor empty_low(int64_t rows, const Columns& columns) {
  return at::empty({rows, columns.stride()}, at::kFloat).narrow(1, 0, columns.all);
}

// y += u b for u [N, r] and panels of b [r, n].
void add_low(const Matrix& u, int64_t r, const Packed& b, at::Tensor& y) {
  const int64_t n = y.size(1);
  float* const ys = y.mutable_data_ptr<float>();
  parallel_for(0, y.size(0), grain(r * n), [&](int64_t begin, int64_t end) {
    multiply(end - begin, n, r, rows_from(u, begin), b.panels, ys + begin * n, n, true);
  });
}

}  // namespace

LayersOut forward_layers(const at::Tensor& x, const at::Tensor& adapted,
                         const std::vector<AdaptedLinear>& layers) {
  const int64_t rows = x.size(0), in = x.size(1);
  const Columns columns(layers);
  LayersOut out{{}, empty_low(rows, columns)};
  const bool rounds =
      std::any_of(layers.begin(), layers.end(), [](const AdaptedLinear& l) { return multiplies_bf16(l.w); });
  const at::Tensor words = rounds ? empty_rounded(rows, in) : at::Tensor(),
                   a = columns.all > 0 ? stacked_a(layers) : at::Tensor();
  const Packed by_a('T', columns.all > 0 ? in : 0, columns.all, columns.all > 0 ? dense(a) : Matrix{});
  const Matrix xs = dense(x), as = dense(adapted), low{out.low.const_data_ptr<float>(), columns.stride()};
  float* const lows = out.low.mutable_data_ptr<float>();
  parallel_for(0, rows, grain((columns.all + 1) * in), [&](int64_t begin, int64_t end) {
    for_blocks(begin, end, [&](int64_t row, int64_t count) {
      if (rounds) round_rows_into(words, row, count, rows_from(xs, row), in);
      if (columns.all == 0) return;
      multiply(count, columns.stride(), in, rows_from(as, row), by_a.panels, lows + row * low.stride,
               low.stride);
    });
  });
  for (size_t i = 0; i < layers.size(); ++i) {
    const AdaptedLinear& l = layers[i];
    const int64_t r = l.rank(), n = l.w.size(0);
    const at::Tensor b = r > 0 ? l.b.detach().contiguous() : at::Tensor();
    const auto scale = static_cast<float>(l.scale);
    if (multiplies_bf16(l.w)) {
      const Epilogue adapter('T', columns.of[i], r, n, r > 0 ? dense(b) : Matrix{}, scale);
      out.y.push_back(bf16_product('T', words, l.w, l.bias, {low.data, low.stride, &adapter}, {}));
      continue;
    }
    out.y.push_back(linear_cpu(x, l.w, l.bias));
    if (r > 0) add_low(columns_from(low, columns.of[i]), r, {'T', r, n, dense(b), scale}, out.y.back());
  }
  return out;
}

namespace {

// A backward pass over the rows of a part: everything but the gradient of x.
struct BackwardPass {
  const std::vector<at::Tensor>& grads;
  const std::vector<AdaptedLinear>& layers;
  const Columns& columns;
  const at::Tensor &adapted, &low;
  std::vector<at::Tensor> words;  // rounded gradients, where products take them
  std::deque<Packed> by_b;        // of each layer with an adapter
  at::Tensor grad_low, a_sums;
  std::vector<at::Tensor> b_sums;

  // Rows [begin, end), which are part `part`.
  void run(int64_t part, int64_t begin, int64_t end) {
    const int64_t in = adapted.size(1), stride = columns.stride();
    float* const u = grad_low.mutable_data_ptr<float>();
    for_blocks(begin, end, [&](int64_t row, int64_t count) {
      auto panels = by_b.begin();
      for (size_t i = 0; i < layers.size(); ++i) {
        const int64_t r = layers[i].rank(), n = layers[i].w.size(0), column = columns.of[i];
        if (r > 0 && !grads[i].defined()) {
          for (int64_t j = row; j < row + count; ++j) std::fill_n(u + j * stride + column, r, 0.0f);
        }
        const Packed* const b = r > 0 ? &*panels++ : nullptr;
        if (!grads[i].defined()) continue;
        const Matrix g = rows_from(dense(grads[i]), row);
        if (words[i].defined()) round_rows_into(words[i], row, count, g, n);
        if (r == 0) continue;
        multiply(count, r, n, g, b->panels, u + row * stride + column, stride);
        add_outer(count, r, n, columns_from(rows_from(dense(low), row), column), g,
                  b_sums[i].mutable_data_ptr<float>() + part * r * n);
      }
      if (columns.all == 0) return;
      add_outer(count, columns.all, in, {u + row * stride, stride}, rows_from(dense(adapted), row),
                a_sums.mutable_data_ptr<float>() + part * columns.all * in);
    });
  }
};

// Σ grad w over the layers, plus grad_low a where `u` is defined.
at::Tensor input_grads(const BackwardPass& pass, const at::Tensor& u, int64_t in) {
  at::Tensor sum;
  const Columns& columns = pass.columns;
  for (size_t i = 0; i < pass.layers.size(); ++i) {
    const AdaptedLinear& l = pass.layers[i];
    const at::Tensor& g = pass.grads[i];
    if (!g.defined()) continue;
    const int64_t r = u.defined() ? l.rank() : 0;
    const at::Tensor a = r > 0 ? l.a.detach().contiguous() : at::Tensor();
    if (multiplies_bf16(l.w)) {
      const Epilogue adapter('N', columns.of[i], r, in, r > 0 ? dense(a) : Matrix{}, 1);
      const float* const us = r > 0 ? u.const_data_ptr<float>() : nullptr;
      sum = bf16_product('N', pass.words[i], l.w, {}, {us, columns.stride(), &adapter}, sum);
      continue;
    }
    at::Tensor own = input_grad_cpu(g, l.w);
    if (r > 0) add_low(columns_from(dense(u), columns.of[i]), r, {'N', r, in, dense(a)}, own);
    sum = sum.defined() ? sum.add_(own) : own;
  }
  return sum.defined() ? sum : at::zeros({pass.adapted.size(0), in}, at::kFloat);
}

}  // namespace

LayersGrads backward_layers(const std::vector<at::Tensor>& grads, const at::Tensor& adapted,
                            const std::vector<AdaptedLinear>& layers, const at::Tensor& low, bool needs_x,
                            bool apart) {
  const int64_t rows = adapted.size(0), in = adapted.size(1);
  const Columns columns(layers);
  // A thread sums over its own rows, and the threads' sums are added in order.
  const int64_t parts = std::clamp<int64_t>(rows / kBlock, 1, thread_count());
  BackwardPass pass{grads, layers, columns, adapted, low, {}, {}, empty_low(rows, columns), {}, {}};
  pass.a_sums = at::zeros({parts, columns.all, in}, at::kFloat);
  for (size_t i = 0; i < layers.size(); ++i) {
    const AdaptedLinear& l = layers[i];
    const int64_t n = l.w.size(0);
    const bool rounds = needs_x && grads[i].defined() && multiplies_bf16(l.w);
    pass.words.push_back(rounds ? empty_rounded(rows, n) : at::Tensor());
    pass.b_sums.push_back(at::zeros({parts, l.rank(), n}, at::kFloat));
    if (l.rank() == 0) continue;
    const at::Tensor b = l.b.detach().contiguous();
    pass.by_b.emplace_back('N', n, l.rank(), dense(b), static_cast<float>(l.scale));
  }
  parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      pass.run(part, rows * part / parts, rows * (part + 1) / parts);
    }
  });
  LayersGrads out;
  const at::Tensor a_sum = pass.a_sums.sum(0);
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t r = layers[i].rank();
    out.a.push_back(r > 0 ? a_sum.narrow(0, columns.of[i], r).clone() : at::Tensor());
    out.b.push_back(r > 0 ? pass.b_sums[i].sum(0).t().mul(layers[i].scale).contiguous() : at::Tensor());
  }
  if (!needs_x) return out;
  const bool adapters = columns.all > 0;
  out.x = input_grads(pass, adapters && !apart ? pass.grad_low : at::Tensor(), in);
  if (!adapters || !apart) return out;
  const at::Tensor a = stacked_a(layers);
  out.adapted = at::zeros({rows, in}, at::kFloat);
  add_low(dense(pass.grad_low), columns.all, {'N', columns.all, in, dense(a)}, out.adapted);
  return out;
}

}  // namespace rlt
