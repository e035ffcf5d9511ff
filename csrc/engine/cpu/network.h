// A decoder with packed weights, run on rows: a row is a token of a sequence at a position. Rows of prompts
// and rows of completions mix in one pass.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/cpu/cache.h"
#include "engine/cpu/packed.h"
#include "engine/runner.h"
#include "nn/transformer.h"

namespace rlt::engine {

// A span with a place for its result.
struct Work : Span {
  int64_t out = -1;  // row of Workspace::last for the last token's hidden state; -1: not wanted
};

// The buffers of one pass; passes that run at the same time need one each.
struct Workspace {
  std::vector<Work> spans;  // those of an adapter lie together
  Buffer<float> last;       // [outs, H] hidden states after the final norm, the head's input
  Buffer<float> logits;     // [outs, logits_stride]

  // Of the network.
  Buffer<float> x, h, qkv, attended, inner, rotations, inputs;
  // Of experts: rows sorted by expert, gates and ups of one, what all make; of each row the router's outputs,
  // the experts, their shares of the sum, and where in `sorted` the row is for each.
  Buffer<float> sorted, wide, made, routed;
  std::vector<int64_t> chosen, place;
  std::vector<float> shares;
  Buffer<float> scores;  // for each thread: rows of scores, and as many of values
  int64_t score_stride = 0;
  struct Row {
    int32_t span;
    int64_t position;
  };
  std::vector<Row> rows;
  std::vector<NumberedRows> adapted;
  std::vector<int64_t> written;  // rows of sampled tokens
  // Spans of prompts, each with its first row.
  struct Prompt {
    const Work* span;
    int64_t row;
  };
  std::vector<Prompt> prompts;
};

class Network {
 public:
  // Borrows the decoder, which must outlive it, and packs its weights.
  explicit Network(const nn::Transformer& decoder);

  // Reads the decoder's own adapter, number 1, and weights where they may have changed.
  void refresh();
  // Makes that of another decoder on the same weights adapter `number`, or takes that away where from is
  // null.
  void set_adapter(int32_t number, const nn::Transformer* from);

  const nn::Config& config() const { return decoder_.config(); }
  const CacheShape& cache_shape() const { return cache_shape_; }
  // Bytes of all packed weights.
  int64_t bytes() const;
  int64_t logits_stride() const { return head_.width(); }

  // Makes room for passes of so many rows and outs whose sequences have up to so many positions.
  void reserve(Workspace& w, int64_t rows, int64_t outs, int64_t positions) const;
  // Runs w.spans: writes keys and values to their segments, hidden states to w.last.
  void forward(Workspace& w) const;
  // w.logits from the first outs rows of w.last, capped.
  void head(Workspace& w, int64_t outs) const;

 private:
  struct Norm {
    std::vector<float> weight, bias;
  };
  struct Expert {
    PackedLinear up, down;  // up: gate, then up
  };
  struct Block {
    Norm attn_norm, q_norm, k_norm, v_norm, post_attn_norm, mlp_norm, post_mlp_norm, post_input_norm,
        post_laurel_norm, post_shared_norm;
    PackedLinear qkv, o, up, down;  // up: gate and up alternating where gated
    PackedLinear input_gate, input_proj, laurel_left, laurel_right;
    std::optional<double> cutoff;
    float scalar = 1;
    int64_t kv_heads = 0, head_dim = 0;
    int64_t keys_of = 0;            // the layer whose keys and values attention reads
    const Block* lender = nullptr;  // that layer's block
    std::vector<float> sinks;       // of each head; empty without
    Norm conv;                      // taps and bias of a convolution; empty without
    // Of a gated delta rule: a_log and dt_bias, and the norm of what it reads.
    Norm decay, delta;
    PackedLinear router;
    std::vector<Expert> experts;
    Norm router_norm, experts_norm, post_experts_norm;
    std::vector<float> router_bias, expert_scale;  // [E], or empty
    int64_t routed = -1;  // where its experts are in a segment's routes of a position; -1: it has none
    // Where head 0 of q, k, v starts in a row of qkv, and how far the next one is.
    int64_t q, k, v, stride, q_stride;
    int64_t z, rate, decays;  // where those of a gated delta rule start

    // Whether attention multiplies in bfloat16, as training does with the same weights, and keeps keys and
    // values in it.
    bool rounds() const { return lender->qkv.element() == Element::kBF16 && kernels().multiply_pairs; }
  };
  // In the order of groups_of.
  static constexpr PackedLinear Block::*kLinears[] = {
      &Block::qkv,        &Block::o,          &Block::up,          &Block::down,
      &Block::input_gate, &Block::input_proj, &Block::laurel_left, &Block::laurel_right};

  void build_block(const nn::Block& block, const nn::Groups& from, Block& to);
  template <class F>
  void for_linears(const F& f);
  Norm read(const nn::Norm& norm) const;
  // Copies x where the model has no such norm.
  void apply(const Norm& norm, const float* x, float* y, int64_t n) const;
  void apply_rows(const Norm& norm, const Buffer<float>& x, float* y, int64_t rows) const;
  void norm_all_heads(const Block& block, Workspace& w) const;
  void gate_heads(const Block& block, Workspace& w) const;

  void list_rows(Workspace& w) const;
  void embed(Workspace& w) const;
  void fill_inputs(Workspace& w) const;
  void add_input(size_t layer, Workspace& w) const;
  void add_laurel(const Block& block, Workspace& w) const;
  void run_block(size_t layer, Workspace& w) const;
  void run_streams(size_t layer, Workspace& w, at::Tensor& streams) const;
  void fill_rotations(Workspace& w) const;
  void attention(const Block& block, int64_t layer, Workspace& w) const;
  void place(const Block& block, int64_t layer, Workspace& w, int64_t row, int64_t head) const;
  void fetch(const Block& block, const Workspace& w, int64_t row, int64_t head) const;
  void attend(const Block& block, int64_t layer, Workspace& w, int64_t row, int64_t head, int64_t first,
              int64_t heads, float* scores) const;
  // Turns the scores of a query's n keys into its head's probabilities. Returns what the keys have of 1, the
  // rest of which sinks have: the sum of values is to be multiplied by it. As in sink_attention, the
  // probabilities are rounded before.
  float to_probabilities(const Block& block, int64_t head, float* scores, int64_t n) const;
  // Takes the place of attention.
  void convolve(const Block& block, int64_t layer, Workspace& w) const;
  void delta_rule(const Block& block, int64_t layer, Workspace& w) const;
  // Of each channel that in(row, channel) gives, the taps over the last tokens to out(row, channel, sum).
  template <class In, class Out>
  void apply_taps(const Block& block, int64_t layer, Workspace& w, int64_t channels, const In& in,
                  const Out& out) const;
  // The segment that keeps a position.
  static CpuSegment& segment_at(const Work& span, int64_t position) {
    return kept(position < span.prefix_length ? span.prefix : span.tail);
  }
  void prompts(const Block& block, int64_t layer, Workspace& w) const;
  void attend_prompt(const Block& block, int64_t layer, Workspace& w, const Workspace::Prompt& prompt,
                     int64_t head, int64_t begin, int64_t end) const;
  // The first key that the query at a position sees.
  int64_t first_seen(int64_t layer, int64_t position) const {
    const int64_t window = config().layer_windows[static_cast<size_t>(layer)];
    return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
  }
  void mlp(size_t layer, Workspace& w) const;
  // Adds to w.x what experts make of x [rows, H].
  void mix(const Block& block, Workspace& w, const float* x) const;
  std::vector<int64_t> deal(const Block& block, Workspace& w,
                            std::vector<std::vector<NumberedRows>>& adapted) const;
  void record_routes(const Block& block, const Workspace& w) const;
  void adapt_experts(Block& block, int32_t number, const nn::Block* from) const;
  void choose(const Block& block, float* logits, int64_t* chosen, float* shares) const;
  void gate_expert(float* gate, float* up) const;
  void reserve_experts(const Block& block, Workspace& w, int64_t rows) const;
  void read_experts(const nn::Block& from, Block& to);
  // Of a row of the MLP of all tokens; with gate beside up where a cutoff comes between.
  int64_t inner_width(const Block& block) const {
    return block.up.width() / (config().gated && !block.cutoff ? 2 : 1);
  }
  // x += layer(in), through norm where there is one.
  void add_linear(const PackedLinear& layer, const Norm& norm, const Rows& in, Workspace& w) const;
  Rows rows_of(const Workspace& w, const Buffer<float>& data, int64_t stride) const;
  // Query rows that are compared with keys together, at most: those of a token's heads that share keys.
  static int64_t together() { return kernels().multiply_f32.rows; }
  int64_t score_area(const Workspace& w) const { return together() * (w.score_stride + value_width_); }

  const nn::Transformer& decoder_;
  std::vector<Block> blocks_;
  Norm norm_;
  Norm inputs_norm_;
  at::Tensor embed_, positions_;  // the decoder's own where that is on the CPU, else copies
  nn::LinearGroup head_group_, inputs_group_;
  PackedLinear head_, inputs_;
  CacheShape cache_shape_;
  int64_t qkv_width_ = 0, inner_width_ = 0, mixed_width_ = 0, value_width_ = 0;
};

}  // namespace rlt::engine
