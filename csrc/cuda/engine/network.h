// A decoder for generation on a device: products by libtorch, the rest by custom kernels, with keys and
// values in pages. Sums are float32; products and attention read the weights' type.
#pragma once

#include <memory>
#include <vector>

#include "cuda/engine/weights.h"
#include "cuda/kernels/kernels.h"
#include "nn/block.h"

namespace rlt::cuda {

// Rows to run; the pointers are device pointers.
struct Pass {
  const Row* rows = nullptr;
  const Place* places = nullptr;
  void* const* pages = nullptr;
  int64_t count = 0, longest = 0;  // longest: an upper bound of the positions
  std::vector<Range> ranges;       // of adapters
  // Only for prompts, whose rows are contiguous: boundaries of each prompt's rows, and of the positions it
  // attends to, [S+1] int32. Undefined if every row is a sequence of its own.
  at::Tensor row_borders, borders;
  int64_t most_rows = 0, most_positions = 0, positions = 0;  // maxima of one sequence; total
};

class Network {
 public:
  // Borrows the decoder, which must outlive it, and runs it on device.
  Network(const nn::Transformer& decoder, c10::Device device);

  // Rereads weights and adapters that may have changed. Returns false if recorded graphs are now invalid.
  bool refresh();
  // Registers the adapter of another decoder with the same weights as adapter `number`; from = null removes
  // it. Returns false if recorded graphs are now invalid. Errors: different weights.
  bool set_adapter(int32_t number, const nn::Transformer* from);

  const nn::Config& config() const { return decoder_.config(); }
  const nn::Transformer& decoder() const { return decoder_; }
  c10::Device device() const { return device_; }
  const Shape& shape() const { return shape_; }

  // Hidden states after the last block, [count, H] float32.
  at::Tensor forward(const Pass& pass) const;
  // The input of the head, [count, H] of shape().type.
  at::Tensor last(const at::Tensor& x) const;
  // The logits before the softcap, [N, V] float32. last [N, H].
  at::Tensor logits(const at::Tensor& last) const;
  void logits_into(at::Tensor& logits, const at::Tensor& last) const;

 private:
  struct Block {
    explicit Block(const nn::Groups& groups);
    nn::Norm attn_norm, q_norm, k_norm, post_attn_norm, mlp_norm, post_mlp_norm;
    Product qkv, o, up, down;
  };
  // The frequencies of a RoPE table, on the device.
  struct Rope {
    at::Tensor inv_freq, long_inv_freq;
    double factor, long_factor;
  };

  at::Tensor norm(const nn::Norm& norm, const at::Tensor& x, at::ScalarType type) const;
  at::Tensor prepared(const Block& block, const at::Tensor& qkv) const;
  at::Tensor attend(size_t layer, const at::Tensor& x, const Pass& pass, void* room) const;
  at::Tensor widen(const Block& block, const at::Tensor& x, const Pass& pass) const;
  // x += norm(layer(y)); the norm is optional.
  void add(const Product& layer, const nn::Norm& norm, at::Tensor& x, const at::Tensor& y,
           const Pass& pass) const;
  at::Tensor mix(size_t layer, const at::Tensor& queries, const Pass& pass, void* room) const;
  Angles angles(size_t layer) const;
  Qkv layout() const;
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) const;

  const nn::Transformer& decoder_;
  c10::Device device_;
  std::vector<Block> blocks_;
  std::vector<Rope> ropes_;
  Product head_;
  nn::Norm norm_;
  at::Tensor embed_, positions_;
  at::ScalarType type_;
  Shape shape_;
};

}  // namespace rlt::cuda
