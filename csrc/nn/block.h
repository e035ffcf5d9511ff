// One block of the transformer.
#pragma once

#include <ATen/ops/cat.h>

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "nn/joined.h"
#include "nn/linear_group.h"
#include "nn/transformer.h"

namespace rlt::nn {

// Cosines and sines of every row's angles, [N, rotary_dim / 2], times the rope's factor.
struct Rotation {
  at::Tensor cos, sin;
};

// An MLP's linear layers as they are multiplied together.
struct MlpGroups {
  MlpGroups(const Mlp& mlp, bool gated);

  LinearGroup up, down;  // up: gate and up, as LinearGroup has them where gated
};

// A block's. Groups of layers that it does without are empty.
struct Groups : MlpGroups {
  Groups(const Config& config, const Block& block);

  LinearGroup qkv, o, input_gate, input_proj, laurel_left, laurel_right, router;
  std::deque<MlpGroups> experts;  // of gate and up one after the other; a group cannot move
};

// The same layers where they are joined with their gradients.
struct Joints {
  explicit Joints(const Groups& groups);
  bool fit() const;
  std::array<const JoinedLinear*, 8> all() const;

  JoinedLinear qkv, o, up, down, input_gate, input_proj, laurel_left, laurel_right;
};

// A model's blocks and what points into them. A graph whose backward is due keeps them when the model is
// freed.
struct Layers {
  std::vector<Block> blocks;
  std::deque<Groups> groups;  // of each block; neither groups nor joints can move
  std::deque<Joints> joints;
  std::mutex copying;  // of the adapters' parameters to the joints
};

// Inline: the library for GPUs calls them, which has the headers of nn but not its code.
inline const std::vector<Block>& Transformer::blocks() const { return layers_->blocks; }
inline const Groups& Transformer::groups(size_t block) const { return layers_->groups[block]; }

// Where the tokens of a pass go.
struct Routing {
  const ExpertLora* lora = nullptr;  // of the experts; null for none
  at::Tensor given;            // [N, k] int32, −1 where the router decides; undefined where it always does
  at::Tensor* load = nullptr;  // [2, E], added to unless null
};

// A block's experts with their parts of its adapters of all.
std::vector<Mlp> adapted_experts(const Config& config, const Block& block);

// What the experts of x [N, H] add to it, by groups unless null. Experts beside an MLP norm x themselves.
at::Tensor mix_experts(const Config& config, const Block& block, const Groups* groups, const at::Tensor& x,
                       const Routing& routing);

// What a block needs to know of the batch and of its own place.
struct BlockPass {
  std::shared_ptr<const Config> config;
  at::Tensor cu_seqlens, continues;  // continues undefined where no sequence continues another
  Rotation rotation;                 // undefined with learned positions
  at::Tensor distances;              // around 0, as far as the longest sequence needs; undefined without
  at::Tensor query_factor;           // [N, 1], undefined where queries keep their lengths
  // Of convolutions: for each row the one 1, 2, ... tokens before it in its text, N for none, [N] int64 each.
  std::vector<at::Tensor> earlier;
  AdapterPass adapter;
  int64_t window = 0;
  const Groups* groups = nullptr;        // null: not by groups
  std::shared_ptr<const Joints> joints;  // null, as groups is: the layers one by one; keeps Layers
  at::Tensor rows;                       // [M] int64: those that are wanted of the block, undefined for all
  AdapterPass wanted;                    // adapter as it is for those rows
  at::Tensor routes = {};                // Routing::given of the block's tokens
  at::Tensor input = {};                 // [N, P], undefined without Inputs
  at::Tensor keys = {}, values = {};     // those of the block that keys_of names, where it is another
  bool loads = false;                    // whether Aside::load is wanted
};

// What a block makes beside its rows; undefined where it makes none.
struct Aside {
  at::Tensor load;          // [2, E], as Routing::load
  at::Tensor keys, values;  // as attention reads them, of a block that lends
};

// The width of a delta rule's keys: its channels are heads' queries and keys and then the values.
inline int64_t delta_key_width(const Config& config, const Block& block) {
  return (block.qkv.out() - block.z.out()) / (2 * config.delta_key_heads);
}
// x and a row of zeros, for rows that are not there.
inline at::Tensor pad_row(const at::Tensor& x) { return at::cat({x, x.new_zeros({1, x.size(1)})}); }

// What the convolution of a block makes of its "qkv" [N, 3H], [N, H].
at::Tensor convolve(const Block& block, const BlockPass& pass, const at::Tensor& wide);
// What the gated delta rule of a block makes of its qkv, z, rate and decay, [N, n·v].
at::Tensor delta_rule(const Block& block, const BlockPass& pass, const std::vector<at::Tensor>& wide);
// Of each channel of x [N, channels], the taps over the last tokens of its text.
at::Tensor apply_taps(const Block& block, const BlockPass& pass, const at::Tensor& x);

// Whether a gradient of anything in it is asked for, adapters included.
bool trained(const Block& block);

// norm of the kind that the configuration asks for, x itself where the model has none; x [N, H].
at::Tensor apply_norm(const Config& config, const Norm& norm, const at::Tensor& x);

// What of x is above the mean of its row by cutoff standard deviations, less that bound.
at::Tensor keep_top(const at::Tensor& x, double cutoff);

// The same of x + y, in one pass where the norm is a frozen one with a bias.
at::Tensor norm_of_sum(const Config& config, const Norm& norm, const at::Tensor& x, const at::Tensor& y);

// Moves features 2i and 2i + 1 of each head to i and half + i, among those that rotate, where a rotation of
// halves finds them. q·k stays as it is, because both move. x [N, heads·d]. Inline for the library for GPUs.
inline at::Tensor pairs_to_halves(const Config& c, const at::Tensor& x) {
  const int64_t n = x.size(0), heads = x.size(1) / c.head_dim, turned = c.rotary_dim;
  const at::Tensor all = x.reshape({n, heads, c.head_dim});
  const at::Tensor pairs = all.narrow(2, 0, turned).reshape({n, heads, turned / 2, 2});
  const at::Tensor halves = pairs.transpose(2, 3).reshape({n, heads, turned});
  return at::cat({halves, all.narrow(2, turned, c.head_dim - turned)}, 2).view(x.sizes());
}

// x plus what attention and MLP make of it, in the wanted rows. x [N, H], result [M, H]; of a model with
// streams x [N, S, H], result [M, S, H].
// Adds to aside.load as mix_experts does.
at::Tensor block_forward(const Block& block, const BlockPass& pass, const at::Tensor& x, Aside& aside);

// The same, keeping only x for backward (Chen 2016): backward computes the block again and differentiates
// that. The adapters' dropout is a hash, so it drops the same features again. Backward refuses parameters
// that have changed since.
at::Tensor checkpointed_block(const Block& block, const BlockPass& pass, const at::Tensor& x, Aside& aside);

}  // namespace rlt::nn
