// What a GPU computes by kernels of our own: each function starts one or some of them on a stream and does
// not wait. Pointers are the device's unless they say otherwise; matrices lie row by row. No sum depends on
// the order in which threads come, so the same arguments give the same bits.
// Not a pragma: the GPU's tests declare all of it once more, for the loops beside it.
#ifndef RLT_CUDA_KERNELS_H
#define RLT_CUDA_KERNELS_H

#include <cstdint>

namespace rlt::cuda {

using Stream = void*;  // cudaStream_t

enum class Type : int32_t { kF32, kBF16, kF16 };

// A matrix whose rows lie `stride` elements apart.
struct Matrix {
  const float* data;
  int64_t stride;
};

// ---- norms (norm.cu) ----

// y[i] = x[i]/√(mean(x[i]²) + eps) · weight, or · (1 + weight); rstd [rows] is 1/√ of each row, unless null.
void rms_norm(Stream stream, Matrix x, const float* weight, bool plus_one, double eps, void* y, Type y_type,
              float* rstd, int64_t rows, int64_t width);
// The gradient of x [rows, width], from that of y.
void rms_norm_backward(Stream stream, Matrix grad, Matrix x, const float* weight, bool plus_one,
                       const float* rstd, float* grad_x, int64_t rows, int64_t width);
// y = layer_norm(x + residual), without residual where that is null; sum, mean and rstd unless null.
void layer_norm(Stream stream, Matrix x, const float* residual, const float* weight, const float* bias,
                double eps, void* y, Type y_type, float* sum, float* mean, float* rstd, int64_t rows,
                int64_t width);
void layer_norm_backward(Stream stream, const float* grad, const float* sum, const float* weight,
                         const float* mean, const float* rstd, float* grad_x, int64_t rows, int64_t width);

// ---- rotations and gates (block.cu) ----

// y [rows, heads·head_dim]: the leading 2·half features of each head of x turned by the angles whose cosines
// and sines [rows, half] are given, feature j with feature j + half; back with inverse.
void rope(Stream stream, Matrix x, const float* cos, const float* sin, bool inverse, float* y, int64_t rows,
          int64_t heads, int64_t head_dim, int64_t half);
// y [rows, width] = activation(gate) · up, or activation(gate) where up.data is null; activations of
// rltrain.h.
void gated(Stream stream, Matrix gate, Matrix up, int32_t activation, void* y, Type y_type, int64_t rows,
           int64_t width);
void gated_backward(Stream stream, const float* grad, Matrix gate, Matrix up, int32_t activation,
                    float* grad_gate, float* grad_up, int64_t rows, int64_t width);
// y[i, j] = x[i, j]/(1 - p) where keep(row_keys[i], layer, j), else 0, as the CPU's kernels have it.
void hash_dropout(Stream stream, const float* x, const int64_t* row_keys, int64_t layer, double p, float* y,
                  int64_t rows, int64_t width);

// ---- sequences (pool.cu) ----

// y [count, width]: y[i] = Σ x[rows[j]] over j from begins[i] on and below begins[i + 1], in that order. x
// [·, width] of `type`.
void sum_rows(Stream stream, const void* x, Type type, const int32_t* begins, const int32_t* rows, float* y,
              int64_t count, int64_t width);
// y [segments, width]: the mean of x [·, width] in the rows from borders[s] on and below borders[s + 1], 0
// where there are none.
void segment_mean(Stream stream, Matrix x, const int32_t* borders, float* y, int64_t segments, int64_t width);
// The gradient of x [rows, width], from that of y [segments, width].
void segment_mean_backward(Stream stream, const float* grad, const int32_t* borders, float* grad_x,
                           int64_t rows, int64_t segments, int64_t width);

// ---- the head's rows (logprob.cu) ----

// Of logits h wᵀ + b [rows, vocab] fp32: z = softcap·tanh(logit/softcap)/temperature, and of each row log
// softmax(z)[target], entropy, rank (how many logits exceed the target's), log Σ exp z. A target outside of
// [0, vocab) has the log-probability NaN and the rank -1.
void token_logprobs(Stream stream, const float* logits, const int64_t* targets, double temperature,
                    double softcap, float* logprobs, float* entropy, int64_t* rank, float* lse, int64_t rows,
                    int64_t vocab);
// In place of logits, in `type`, each row from where that of the logits begins: the derivative by the logits
// of Σ grad_logprobs·logprob + grad_entropy·entropy. grad_logprobs null counts as ones, grad_entropy null as
// zeros.
void token_logprobs_slope(Stream stream, float* logits, const int64_t* targets, double temperature,
                          double softcap, const float* lse, const float* entropy, const float* grad_logprobs,
                          const float* grad_entropy, Type type, int64_t rows, int64_t vocab);

// ---- generating (cache.cu, decode.cu, sampler.cu) ----

// Keys and values of so many positions lie together on a page, [layers][keys, values][kv_heads][kPage]
// [head_dim] of `type`.
constexpr int64_t kPage = 16;

struct Shape {
  int64_t layers, heads, kv_heads, head_dim;
  Type type;  // of keys, values, queries and what attention gives
};

// Where a sequence's positions are: those before prefix_length on the pages from prefix_page on, the later
// ones from tail_page on, counted from the tail's own beginning. Numbers are those of a list of pages.
struct Place {
  int32_t prefix_length, prefix_page, tail_page;
};

// A token to run.
struct Row {
  int32_t token, position, place;  // its sequence, in a list of places
  int32_t long_rope;               // 1: the sequence's length chooses the long table of ropes that have one
};

// x [rows, width] fp32 = table[token] · scale (+ positions[position], unless null).
void embed(Stream stream, const Row* rows, const void* table, Type table_type, const float* positions,
           float scale, float* x, int64_t count, int64_t width);

// How a row of the product qkv lies: head h of q begins at q + h · q_step, that of k and v likewise.
struct Qkv {
  int64_t q, k, v, q_step, kv_step, stride;
};

// Angles by position: frequencies [half] of a rope, and the long table, null without one.
struct Angles {
  const double *inv_freq, *long_inv_freq;
  double factor, long_factor;
  int64_t half;  // 0: no rope
};

// Each head of q and k normed (RMS, weights [head_dim], null without) and turned; q goes to queries [count,
// heads·head_dim], k and v to their pages of the layer. All results are of shape.type.
void store(Stream stream, const Row* rows, const Place* places, void* const* pages, const float* qkv,
           Qkv layout, Angles angles, const float* q_norm, const float* k_norm, bool plus_one, double eps,
           Shape shape, int64_t layer, void* queries, int64_t count);

// Causal attention of each row to its sequence's positions up to its own: out [count, heads·head_dim] of
// shape.type. window, unless 0: only those less than window before. longest: no row's position is greater.
// room, unless null, are decode_room bytes for the parts of long sequences.
void decode_attention(Stream stream, const Row* rows, const Place* places, void* const* pages,
                      const void* queries, double scale, int64_t window, double softcap, Shape shape,
                      int64_t layer, void* out, int64_t count, int64_t longest, void* room);
int64_t decode_room(Shape shape, int64_t count, int64_t longest);

// Keys and values of a layer that sequences have on pages, one sequence after the other: k, v [total,
// kv_heads·head_dim] of shape.type; borders [sequences + 1] int32.
void gather(Stream stream, const Place* places, void* const* pages, const int32_t* borders, Shape shape,
            int64_t layer, void* k, void* v, int64_t sequences, int64_t total);

// A token to draw, from row `logits`.
struct PickRow {
  double repetition_penalty, temperature, top_p, min_p;
  int64_t top_k;
  uint64_t seed, stream;
  uint32_t sample, position;
  int32_t logits;
  int32_t seen, seen_count;  // its part of the ids that were met
  int32_t pad;
};

struct DrawRow {
  int32_t token;  // -2: the logits are not finite
  float logprob, raw;
};

// Draws as engine/cpu/sampler.cc does, the same keys give the same tokens up to the rounding of sums. logits
// [rows, stride] fp32 are capped by softcap first, unless it is 0, on the fly. scratch [picks, vocab] fp32 is
// used by picks with a penalty; null where there is none.
void sample(Stream stream, const PickRow* picks, const int32_t* seen, const float* logits, int64_t stride,
            int64_t vocab, double softcap, float* scratch, DrawRow* draws, int64_t count);

}  // namespace rlt::cuda

#endif
