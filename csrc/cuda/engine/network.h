// A decoder as a device runs it for generating: products by libtorch, the rest by kernels of our own, with
// keys and values on pages. Sums are float32; what a product or attention reads is of the weights' type.
#pragma once

#include <memory>
#include <vector>

#include "cuda/engine/weights.h"
#include "cuda/kernels/kernels.h"
#include "nn/block.h"

namespace rlt::cuda {

// Rows to run; pointers are the device's.
struct Pass {
  const Row* rows = nullptr;
  const Place* places = nullptr;
  void* const* pages = nullptr;
  int64_t count = 0, longest = 0;  // no position is greater
  std::vector<Range> ranges;       // of adapters
  // Prompts, whose rows lie together: borders of rows and of the positions that each sees [S+1] int32;
  // undefined where every row is a sequence of its own.
  at::Tensor row_borders, borders;
  int64_t most_rows = 0, most_positions = 0, positions = 0;  // of a sequence; of all
};

class Network {
 public:
  // Borrows the decoder, which must outlive it, and runs it on device.
  Network(const nn::Transformer& decoder, c10::Device device);

  // Reads weights and adapters where they may have changed. False: what was recorded cannot be replayed.
  bool refresh();
  // Makes the adapter of another decoder on the same weights adapter `number`, or takes that away where from
  // is null. False as above. Errors: other weights.
  bool set_adapter(int32_t number, const nn::Transformer* from);

  const nn::Config& config() const { return decoder_.config(); }
  const nn::Transformer& decoder() const { return decoder_; }
  c10::Device device() const { return device_; }
  const Shape& shape() const { return shape_; }

  // Hidden states after the last block, [count, H] float32.
  at::Tensor forward(const Pass& pass) const;
  // What the head takes of them, [count, H] of shape().type.
  at::Tensor last(const at::Tensor& x) const;
  // The head's outputs for such rows, before a softcap, [N, V] float32.
  at::Tensor logits(const at::Tensor& last) const;
  void logits_into(at::Tensor& logits, const at::Tensor& last) const;

 private:
  struct Block {
    explicit Block(const nn::Groups& groups);
    nn::Norm attn_norm, q_norm, k_norm, post_attn_norm, mlp_norm, post_mlp_norm;
    Product qkv, o, up, down;
  };
  // A rope's frequencies on the device.
  struct Rope {
    at::Tensor inv_freq, long_inv_freq;
    double factor, long_factor;
  };

  at::Tensor norm(const nn::Norm& norm, const at::Tensor& x, at::ScalarType type) const;
  at::Tensor attend(size_t layer, const at::Tensor& x, const Pass& pass, void* room) const;
  at::Tensor widen(const Block& block, const at::Tensor& x, const Pass& pass) const;
  // x += layer(y), through norm where there is one.
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
