// Attention of packed sequences on a GPU: shared by the operator and its implementations.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <tuple>
#include <vector>

#include "cuda/kernels/kernels.h"

namespace rlt::cuda {

struct AttentionRule {
  int64_t heads, kv_heads, head_dim;
  double scale;
  bool causal;
  int64_t window;  // 0: none
  double softcap;  // 0: none
  at::ScalarType compute;
};

// A sequence's rows, and the rows of the prefix it continues.
struct Span {
  int64_t first, length, before, before_length;

  int64_t keys() const { return before_length + length; }
  bool operator==(const Span& o) const {
    return first == o.first && length == o.length && before == o.before && before_length == o.before_length;
  }
};

// Rows and keys of all non-empty sequences, concatenated. The keys of a sequence include those of its prefix,
// so there may be more keys than rows.
struct Layout {
  std::vector<Span> spans;
  at::Device device = at::kCPU;
  Stream stream = nullptr;
  int64_t rows = 0, keys = 0;             // totals
  int64_t longest = 0, longest_keys = 0;  // of one sequence
  at::Tensor rows_at, keys_at;            // [spans + 1] int32 on the device: start of each sequence
  // [rows] int32 on the device: index of each row if every sequence were padded to padded() rows.
  at::Tensor padded_row;
  // Only if a sequence continues another, else undefined; int32 on the device. row_of [keys] is the row of
  // each key. The keys of row i are taken[taken_at[i]..taken_at[i + 1]), its own first.
  at::Tensor row_of, taken_at, taken;

  bool continued() const { return row_of.defined(); }
  int64_t padded() const { return (longest + 31) / 32 * 32; }
};

// Cached per thread, because all layers of a pass have the same layout.
std::shared_ptr<const Layout> layout_of(std::vector<Span> spans, const at::Device& device);

// Gathers the rows of t [rows, width] for all keys: [keys, width].
at::Tensor seen(const Layout& layout, const at::Tensor& t);
// The gradient of t in float32, given that of seen(t). The order of sums is fixed.
at::Tensor seen_backward(const Layout& layout, const at::Tensor& grad);

// Attention of q [rows, heads·head_dim] to keys and values [keys, kv_heads·head_dim], in rule.compute. The
// queries of a sequence are aligned with its last keys. Returns the output [rows, heads·head_dim] float32,
// and lse [heads, rows] for backward. The gradients of q, keys and values are float32 or rule.compute.
using Forward = std::tuple<at::Tensor, at::Tensor>;
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Composed of libtorch's products, one sequence at a time; supports any rule on any device.
Forward composed_attention(const AttentionRule& rule, const Layout& layout, const at::Tensor& q,
                           const at::Tensor& keys, const at::Tensor& values);
Backward composed_attention_backward(const AttentionRule& rule, const Layout& layout, const at::Tensor& grad,
                                     const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                     const at::Tensor& out, const at::Tensor& lse);

// libtorch's flash attention, for a two-byte rule.compute.
bool flash_fits(const AttentionRule& rule, const Layout& layout);
Forward flash_attention(const AttentionRule& rule, const Layout& layout, const at::Tensor& q,
                        const at::Tensor& keys, const at::Tensor& values);
Backward flash_attention_backward(const AttentionRule& rule, const Layout& layout, const at::Tensor& grad,
                                  const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                  const at::Tensor& out, const at::Tensor& lse);

// libtorch's memory-efficient attention, in float32.
bool efficient_fits(const AttentionRule& rule, const Layout& layout);
Forward efficient_attention(const AttentionRule& rule, const Layout& layout, const at::Tensor& q,
                            const at::Tensor& keys, const at::Tensor& values);
Backward efficient_attention_backward(const AttentionRule& rule, const Layout& layout, const at::Tensor& grad,
                                      const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                      const at::Tensor& out, const at::Tensor& lse);

}  // namespace rlt::cuda
