#include "ops/cpu/bf16.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "kernels/buffer.h"
#include "kernels/kernels.h"
#include "kernels/parallel.h"
#include "kernels/tiles.h"

namespace rlt {
namespace {

// Words that are packed at once, at most: they are read again from the caches.
constexpr int64_t kPacked = int64_t{1} << 20;

// y [m, n] = x op(w) for the rounded rows x of [m, k]: threads pack some columns of w together, then share
// the rows.
at::Tensor product(char trans, int64_t m, int64_t n, int64_t k, const at::Tensor& x, const at::Tensor& w) {
  at::Tensor y = at::empty({m, n}, at::kFloat);
  if (y.numel() == 0) return y;
  float* const out = y.mutable_data_ptr<float>();
  const Product& by = kernels().multiply_pairs;
  const int64_t words = words_of(k), panel = words * kPanel,
                panels = std::clamp<int64_t>(kPacked / std::max<int64_t>(1, panel), 1, panels_of(n));
  Buffer<float> packed(panels * panel);
  for (int64_t first = 0; first < n; first += panels * kPanel) {
    const int64_t columns = std::min(panels * kPanel, n - first);
    parallel_for(0, panels_of(columns), grain(panel), [&](int64_t begin, int64_t end) {
      const int64_t column = first + begin * kPanel;
      const Matrix16 from =
          trans == 'T' ? rows_of_bf16(w, column) : Matrix16{rows_of_bf16(w, 0).data + column, w.size(1)};
      pack_pairs(trans, k, std::min((end - begin) * kPanel, n - column), from, packed.data() + begin * panel);
    });
    parallel_for(0, tiles_of(m, by), grain(columns * words), [&](int64_t begin, int64_t end) {
      const int64_t row = begin * by.rows;
      multiply_pairs(std::min(end * by.rows, m) - row, columns, k, rows_of_bf16(x, row),
                     {packed.data(), panel, kPanel}, out + row * n + first, n);
    });
  }
  return y;
}

}  // namespace

bool multiplies_bf16(const at::Tensor& w) {
  return w.scalar_type() == at::kBFloat16 && kernels().multiply_pairs;
}

at::Tensor rounded_rows(const at::Tensor& x) {
  const int64_t rows = x.size(0), n = x.size(1), stride = 2 * words_of(n);
  at::Tensor rounded = at::empty({rows, stride}, at::kBFloat16);
  auto* const to = static_cast<uint16_t*>(rounded.mutable_data_ptr());
  const float* const from = x.const_data_ptr<float>();
  parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
    round_rows(end - begin, n, {from + begin * n, n}, to + begin * stride);
  });
  return rounded;
}

namespace {

// Layers of one input follow each other, as those of q, k and v do: its rounded rows are kept for them.
at::Tensor rounded_input(const at::Tensor& x) {
  if (x.is_inference()) return rounded_rows(x);  // which counts no versions
  struct Last {
    c10::weak_intrusive_ptr<c10::TensorImpl> of;  // holds its address, so that no other tensor has that
    uint32_t version;
    at::Tensor result;
  };
  static thread_local std::optional<Last> last;
  const auto version = static_cast<uint32_t>(x._version());
  if (!last || last->of._unsafe_get_target() != x.unsafeGetTensorImpl() || last->version != version) {
    last.reset();
    last = Last{c10::weak_intrusive_ptr<c10::TensorImpl>(x.getIntrusivePtr()), version, rounded_rows(x)};
  }
  return last->result;
}

}  // namespace

at::Tensor bf16_linear(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& bias) {
  at::Tensor y = product('T', x.size(0), w.size(0), w.size(1), rounded_input(x), w);
  if (bias) y.add_(*bias);
  return y;
}

at::Tensor bf16_input_grad(const at::Tensor& grad, const at::Tensor& w) {
  return product('N', grad.size(0), w.size(1), w.size(0), rounded_rows(grad), w);
}

}  // namespace rlt
