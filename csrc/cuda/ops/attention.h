// Attention of packed sequences on a GPU: what the operator and the ways to compute it share.
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

// A sequence's rows, and those of the beginning that it goes on with.
struct Span {
  int64_t first, length, before, before_length;

  int64_t keys() const { return before_length + length; }
  bool operator==(const Span& o) const {
    return first == o.first && length == o.length && before == o.before && before_length == o.before_length;
  }
};

// The rows and the keys of all sequences that have any, one after the other. The keys of a sequence are those
// of the beginning and its own, so there may be more keys than rows.
struct Layout {
  std::vector<Span> spans;
  at::Device device = at::kCPU;
  Stream stream = nullptr;
  int64_t rows = 0, keys = 0;             // of all sequences
  int64_t longest = 0, longest_keys = 0;  // of one
  at::Tensor rows_at, keys_at;            // [spans + 1] int32 on the device: where each sequence's begin
  // Where each row is, [rows] int32 on the device, if every sequence had padded() rows.
  at::Tensor padded_row;
  // Where a sequence goes on with another, else undefined; int32 on the device. The row of each key, [keys];
  // and the keys of each row, its own first: those in taken [keys] from taken_at [rows + 1] on.
  at::Tensor row_of, taken_at, taken;

  bool continued() const { return row_of.defined(); }
  int64_t padded() const { return (longest + 31) / 32 * 32; }
};

// A thread keeps the last one, for the layers of a pass have the same.
std::shared_ptr<const Layout> layout_of(std::vector<Span> spans, const at::Device& device);

// What the sequences see of t [rows, width]: [keys, width].
at::Tensor seen(const Layout& layout, const at::Tensor& t);
// The gradient of t, float32, from that of seen(t). Sums have a fixed order.
at::Tensor seen_backward(const Layout& layout, const at::Tensor& grad);

// Attention of q [rows, heads·head_dim] to keys and values [keys, kv_heads·head_dim] of rule.compute, a
// query's sequence lying at the end of its keys: [rows, heads·head_dim] float32, and lse [heads, rows], which
// backward needs. The gradients of q, keys and values are float32 or rule.compute.
using Forward = std::tuple<at::Tensor, at::Tensor>;
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Of libtorch's products, a sequence at a time; any rule, any device.
Forward composed_attention(const AttentionRule& rule, const Layout& layout, const at::Tensor& q,
                           const at::Tensor& keys, const at::Tensor& values);
Backward composed_attention_backward(const AttentionRule& rule, const Layout& layout, const at::Tensor& grad,
                                     const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                     const at::Tensor& out, const at::Tensor& lse);

// libtorch's flash attention, in rule.compute of two bytes.
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
