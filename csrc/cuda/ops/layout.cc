// The layout of a packed batch, on the device that computes attention.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "cuda/ops/attention.h"
#include "cuda/ops/launch.h"

namespace rlt::cuda {
namespace {

// Lists the keys of each row: its own, then its copies in the sequences that continue it, in order.
void list_takers(const std::vector<Span>& spans, const std::vector<int32_t>& row_of, int32_t* taken_at,
                 int32_t* taken) {
  const auto keys = static_cast<int32_t>(row_of.size());
  int32_t* counts = taken_at + 1;
  for (const int32_t row : row_of) ++counts[row];
  const int64_t rows = spans.back().first + spans.back().length;
  for (int64_t i = 0; i < rows; ++i) taken_at[i + 1] += taken_at[i];
  std::vector<int32_t> next(taken_at, taken_at + rows);
  // A prefix comes before its continuations, so a row's own key comes first.
  for (int32_t key = 0; key < keys; ++key)
    taken[next[static_cast<size_t>(row_of[static_cast<size_t>(key)])]++] = key;
}

std::vector<int32_t> rows_of_keys(const std::vector<Span>& spans) {
  std::vector<int32_t> rows;
  for (const Span& s : spans) {
    for (int64_t i = 0; i < s.before_length; ++i) rows.push_back(static_cast<int32_t>(s.before + i));
    for (int64_t i = 0; i < s.length; ++i) rows.push_back(static_cast<int32_t>(s.first + i));
  }
  return rows;
}

std::shared_ptr<const Layout> make(std::vector<Span> spans, const at::Device& device, Stream stream) {
  auto made = std::make_shared<Layout>();
  Layout& l = *made;
  l.spans = std::move(spans);
  l.device = device;
  l.stream = stream;
  for (const Span& s : l.spans) {
    l.rows += s.length;
    l.keys += s.keys();
    l.longest = std::max(l.longest, s.length);
    l.longest_keys = std::max(l.longest_keys, s.keys());
  }
  const bool continued = l.keys > l.rows;
  const auto n = static_cast<int64_t>(l.spans.size());
  // One asynchronous copy to the device. The host memory is not pinned, so it has been read when the call
  // returns.
  const int64_t fixed = 2 * (n + 1) + l.rows;
  at::Tensor host = at::zeros({fixed + (continued ? 2 * l.keys + l.rows + 1 : 0)}, at::kInt);
  int32_t* p = host.mutable_data_ptr<int32_t>();
  int32_t* padded_row = p + 2 * (n + 1);
  for (int64_t i = 0; i < n; ++i) {
    const Span& s = l.spans[static_cast<size_t>(i)];
    p[i + 1] = p[i] + static_cast<int32_t>(s.length);
    p[n + i + 2] = p[n + i + 1] + static_cast<int32_t>(s.keys());
    std::iota(padded_row + p[i], padded_row + p[i + 1], static_cast<int32_t>(i * l.padded()));
  }
  if (continued) {
    p += fixed;
    const std::vector<int32_t> row_of = rows_of_keys(l.spans);
    std::copy(row_of.begin(), row_of.end(), p);
    list_takers(l.spans, row_of, p + l.keys, p + l.keys + l.rows + 1);
  }
  const at::Tensor there = host.to(device, /*non_blocking=*/true);
  l.rows_at = there.narrow(0, 0, n + 1);
  l.keys_at = there.narrow(0, n + 1, n + 1);
  l.padded_row = there.narrow(0, 2 * (n + 1), l.rows);
  if (continued) {
    l.row_of = there.narrow(0, fixed, l.keys);
    l.taken_at = there.narrow(0, fixed + l.keys, l.rows + 1);
    l.taken = there.narrow(0, fixed + l.keys + l.rows + 1, l.keys);
  }
  return made;
}

}  // namespace

std::shared_ptr<const Layout> layout_of(std::vector<Span> spans, const at::Device& device) {
  static thread_local std::shared_ptr<const Layout> last;
  const Stream stream = current_stream(device);
  if (last == nullptr || last->spans != spans || last->device != device || last->stream != stream) {
    last = make(std::move(spans), device, stream);
  }
  return last;
}

at::Tensor seen(const Layout& l, const at::Tensor& t) {
  return l.continued() ? t.index_select(0, l.row_of) : t;
}

at::Tensor seen_backward(const Layout& l, const at::Tensor& grad) {
  if (!l.continued()) return grad.to(at::kFloat);
  const at::Tensor g = grad.contiguous();
  at::Tensor sum = at::empty({l.rows, g.size(1)}, g.options().dtype(at::kFloat));
  sum_rows(Launch(g).stream, g.const_data_ptr(), type_of(g.scalar_type()),
           l.taken_at.const_data_ptr<int32_t>(), l.taken.const_data_ptr<int32_t>(), out(sum), l.rows,
           g.size(1));
  return sum;
}

}  // namespace rlt::cuda
