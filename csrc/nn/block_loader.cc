#include "nn/block_loader.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <cmath>

namespace rlt::nn {
namespace {

// How far above a normal distribution's mean `share` of it ends.
double deviations(double share) {
  return std::sqrt(2.0) * at::full({}, 2 * share - 1, at::kDouble).erfinv().item<double>();
}

}  // namespace

BlockLoader::BlockLoader(Loader& load, const Config& config, std::map<std::string, Linear*>& linears)
    : load_(load),
      c_(config),
      linears_(linears),
      biased_(config.norm == RLT_NORM_LAYER && (config.norm_after || load.has("norm.bias"))) {}

Norm BlockLoader::norm(const std::string& name, int64_t size) {
  Norm made{load_.tensor(name + ".weight", {size}), {}};
  if (biased_) made.bias = load_.tensor(name + ".bias", {size});
  return made;
}

void BlockLoader::take(Linear& into, const std::string& name, int64_t in, int64_t out) {
  into = load_.linear(name, in, out);
  into.index = index_++;
  linears_[name] = &into;
}

void BlockLoader::read(size_t n, Block& block) {
  const std::string at = "layers." + std::to_string(n) + ".";
  const int64_t width = c_.hidden_size;
  const rlt_layer_shape& shape = c_.layer_shapes[n];
  block.kv_heads = shape.kv_heads;
  block.head_dim = shape.head_dim;
  block.keys_of = static_cast<size_t>(shape.keys_of);
  const bool before = c_.post_norms != RLT_POST_NORMS_ONLY;
  if (before && (n > 0 || !c_.embed_norm || c_.norm_after)) block.attn_norm = norm(at + "attn_norm", width);
  if (c_.norm_after && load_.has(at + "sum_norm.weight")) block.sum_norm = norm(at + "sum_norm", width);
  int64_t mixed = width;  // that "o" takes
  if (load_.has(at + "a_log.weight")) {
    mixed = read_delta(at, block);
  } else if (load_.has(at + "conv.weight")) {
    take(block.qkv, at + "qkv", width, 3 * width);
    read_convolution(at, width, block);
  } else {
    mixed = read_attention(at, shape, block.keys_of != n, block);
  }
  take(block.o, at + "o", mixed, width);
  if (before && c_.residual != RLT_RESIDUAL_SHARED_NORM) block.mlp_norm = norm(at + "mlp_norm", width);
  const bool experts = load_.has(at + "router.weight");
  const bool shares = experts && !load_.has(at + "experts_norm.weight");
  if (const int64_t inner = shares ? c_.shared_size : shape.intermediate_size; inner > 0) {
    read_mlp(at, inner, block);
  }
  if (experts) read_experts(at, block);
  if (c_.post_norms) {
    block.post_attn_norm = norm(at + "post_attn_norm", width);
    block.post_mlp_norm = norm(at + "post_mlp_norm", width);
  }
  if (const int64_t each = load_.size("inputs_norm.weight", 0); each > 0) {
    take(block.input_gate, at + "input_gate", width, each);
    take(block.input_proj, at + "input_proj", each, width);
    block.post_input_norm = norm(at + "post_input_norm", width);
  }
  if (load_.has(at + "scalar.weight")) block.scalar = load_.tensor(at + "scalar.weight", {1});
  if (shape.sparsity > 0) block.cutoff = deviations(shape.sparsity);
  if (const int64_t rank = load_.outputs(at + "laurel_left"); rank > 0) {
    take(block.laurel_left, at + "laurel_left", width, rank);
    take(block.laurel_right, at + "laurel_right", rank, width);
    block.post_laurel_norm = norm(at + "post_laurel_norm", width);
  }
  if (load_.has(at + "streams_router.weight")) read_streams(at, block);
}

// AltUp's, whose first stream the block works on.
void BlockLoader::read_streams(const std::string& at, Block& block) {
  const int64_t width = c_.hidden_size, streams = load_.size(at + "streams_router.weight", 0);
  TORCH_CHECK(block.input_gate.weight.defined() &&
                  load_.has("spread." + std::to_string(streams - 2) + ".weight") && !block.scalar.defined(),
              at, "streams_router.weight has ", streams,
              " streams: the model must have as many, inputs to each layer, and no scalar");
  block.streams_router = load_.linear(at + "streams_router", width, streams);
  block.predict = load_.linear(at + "predict", streams, streams * streams);
  block.correct = load_.linear(at + "correct", streams, streams);
  block.streams_norm = norm(at + "streams_norm", width);
  if (load_.has(at + "streams_scale.weight"))
    block.streams_scale = load_.tensor(at + "streams_scale.weight", {width});
}

// Returns the width of what attention makes, as read_delta does.
int64_t BlockLoader::read_attention(const std::string& at, const rlt_layer_shape& shape, bool borrows,
                                    Block& block) {
  const int64_t width = c_.hidden_size, queries = c_.heads * shape.head_dim,
                keys = shape.kv_heads * shape.head_dim;
  const bool all = c_.qk_norm == RLT_QK_NORM_ALL;
  if (c_.qkv != RLT_QKV_SPLIT) {
    take(block.qkv, at + "qkv", width, queries + 2 * keys);
  } else {
    take(block.q, at + "q", width, c_.gated_queries ? 2 * queries : queries);
    if (!borrows) take(block.k, at + "k", width, keys);
    if (!borrows && (!c_.value_norm || load_.has_linear(at + "v"))) take(block.v, at + "v", width, keys);
  }
  if (c_.qk_norm) block.q_norm = norm(at + "q_norm", all ? queries : shape.head_dim);
  if (c_.qk_norm && !borrows) block.k_norm = norm(at + "k_norm", all ? keys : shape.head_dim);
  if (c_.value_norm) {
    const at::Tensor shift = at::ones({shape.head_dim});
    block.v_norm.weight = c_.norm == RLT_NORM_RMS_PLUS_ONE ? shift.sub(1) : shift;
  }
  if (load_.has(at + "sinks.weight")) {
    block.sinks = load_.tensor(at + "sinks.weight", {c_.heads});
    TORCH_CHECK(block.sinks.is_cpu(), "a model with sinks runs on the CPU only: use --device cpu");
  }
  return queries;
}

int64_t BlockLoader::read_delta(const std::string& at, Block& block) {
  const int64_t width = c_.hidden_size, channels = load_.size(at + "conv.weight", 0),
                values = load_.size(at + "a_log.weight", 0), each = load_.size(at + "delta_norm.weight", 0),
                keys_left = channels - values * each;
  TORCH_CHECK(c_.delta_key_heads > 0 && values % c_.delta_key_heads == 0 && keys_left > 0 &&
                  keys_left % (2 * c_.delta_key_heads) == 0,
              at, ": ", values, " value heads of ", each, " and ", channels, " channels do not fit ",
              c_.delta_key_heads, " key heads");
  take(block.qkv, at + "qkv", width, channels);
  take(block.z, at + "z", width, values * each);
  take(block.rate, at + "rate", width, values);
  take(block.decay, at + "decay", width, values);
  block.a_log = load_.tensor(at + "a_log.weight", {values});
  block.dt_bias = load_.tensor(at + "dt_bias.weight", {values});
  block.delta_norm = load_.tensor(at + "delta_norm.weight", {each});
  read_convolution(at, channels, block);
  return values * each;
}

void BlockLoader::read_convolution(const std::string& at, int64_t channels, Block& block) {
  const int64_t taps = load_.size(at + "conv.weight", 1);
  TORCH_CHECK(taps > 1, "weight ", at, "conv.weight needs two columns or more");
  block.conv = load_.tensor(at + "conv.weight", {channels, taps});
  if (load_.has(at + "conv.bias")) block.conv_bias = load_.tensor(at + "conv.bias", {channels});
  TORCH_CHECK(block.conv.is_cpu(), "a model with convolutions runs on the CPU only: use --device cpu");
}

void BlockLoader::read_mlp(const std::string& at, int64_t inner, Block& block) {
  const int64_t width = c_.hidden_size;
  if (c_.fused_gate_up) {
    block.up_first = c_.bidirectional && load_.has_linear(at + "up_gate");
    take(block.gate_up, at + (block.up_first ? "up_gate" : "gate_up"), width, 2 * inner);
  } else {
    if (c_.gated) take(block.gate, at + "gate", width, inner);
    take(block.up, at + "up", width, inner);
  }
  take(block.down, at + "down", inner, width);
}

void BlockLoader::read_experts(const std::string& at, Block& block) {
  const int64_t width = c_.hidden_size;
  TORCH_CHECK(c_.experts > 0, "weight ", at, "router.weight is of a model with experts");
  block.router = load_.linear(at + "router", width, c_.experts);
  TORCH_CHECK(block.router.weight.is_cpu(), "a model with experts runs on the CPU only: use --device cpu");
  if (load_.has(at + "router_bias.weight")) {
    block.router_bias = load_.tensor(at + "router_bias.weight", {c_.experts});
  }
  TORCH_CHECK(load_.has(at + "experts_norm.weight") == (c_.post_norms == RLT_POST_NORMS_ALSO), at,
              "experts_norm.weight is for models with norms before and after, and only for these");
  if (c_.post_norms) {
    block.router_norm = norm(at + "router_norm", width);
    block.experts_norm = norm(at + "experts_norm", width);
    block.post_experts_norm = norm(at + "post_experts_norm", width);
    block.post_shared_norm = norm(at + "post_shared_norm", width);
    block.expert_scale = load_.tensor(at + "expert_scale.weight", {c_.experts});
  }
  if (load_.has(at + "shared_gate.weight")) block.shared_gate = load_.linear(at + "shared_gate", width, 1);
  for (int64_t m = 0; m < c_.experts; ++m) {
    const std::string name = at + "experts." + std::to_string(m) + ".";
    Mlp& expert = block.experts.emplace_back();
    expert.gate = load_.linear(name + "gate", width, c_.expert_size);
    expert.up = load_.linear(name + "up", width, c_.expert_size);
    expert.down = load_.linear(name + "down", c_.expert_size, width);
  }
}

}  // namespace rlt::nn
