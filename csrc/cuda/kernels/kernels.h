// The custom CUDA kernels. Each function launches kernels on a stream and does not wait. Pointers are device
// pointers unless noted; matrices are row-major. No sum depends on thread order, so equal arguments give
// equal bits.
// Include guards instead of a pragma, because the GPU tests include this twice: for kernels and for reference
// loops.
#ifndef RLT_CUDA_KERNELS_H
#define RLT_CUDA_KERNELS_H

#include <cstdint>

namespace rlt::cuda {

using Stream = void*;  // cudaStream_t

enum class Type : int32_t { kF32, kBF16, kF16 };

// A matrix whose rows start `stride` elements apart.
struct Matrix {
  const float* data;
  int64_t stride;
};

// ---- norms (norm.cu) ----

// y[i] = x[i]/√(mean(x[i]²) + eps) · weight, or · (1 + weight) with plus_one; rstd [rows], unless null, gets
// 1/√ of each row.
void rms_norm(Stream stream, Matrix x, const float* weight, bool plus_one, double eps, void* y, Type y_type,
              float* rstd, int64_t rows, int64_t width);
// The gradient of x [rows, width], given that of y.
void rms_norm_backward(Stream stream, Matrix grad, Matrix x, const float* weight, bool plus_one,
                       const float* rstd, float* grad_x, int64_t rows, int64_t width);
// y = layer_norm(x + residual); residual may be null, as may the outputs sum, mean and rstd.
void layer_norm(Stream stream, Matrix x, const float* residual, const float* weight, const float* bias,
                double eps, void* y, Type y_type, float* sum, float* mean, float* rstd, int64_t rows,
                int64_t width);
void layer_norm_backward(Stream stream, const float* grad, const float* sum, const float* weight,
                         const float* mean, const float* rstd, float* grad_x, int64_t rows, int64_t width);

// ---- rotary embeddings and gates (block.cu) ----

// y [rows, heads·head_dim]: rotates the leading 2·half features of each head of x, feature j with feature j +
// half, by angles with the cosines and sines [rows, half]. inverse rotates back.
void rope(Stream stream, Matrix x, const float* cos, const float* sin, bool inverse, float* y, int64_t rows,
          int64_t heads, int64_t head_dim, int64_t half);
// y [rows, width] = activation(gate) · up, or activation(gate) if up.data is null; for the activations of
// rltrain.h.
void gated(Stream stream, Matrix gate, Matrix up, int32_t activation, void* y, Type y_type, int64_t rows,
           int64_t width);
void gated_backward(Stream stream, const float* grad, Matrix gate, Matrix up, int32_t activation,
                    float* grad_gate, float* grad_up, int64_t rows, int64_t width);
// y[i, j] = x[i, j]/(1 - p) if keep(row_keys[i], layer, j), else 0; bit-identical to the CPU kernels.
void hash_dropout(Stream stream, const float* x, const int64_t* row_keys, int64_t layer, double p, float* y,
                  int64_t rows, int64_t width);

// ---- sequences (pool.cu) ----

// y [count, width]: y[i] = Σ x[rows[j]] for j in [begins[i], begins[i + 1]), in order. x [·, width] of
// `type`.
void sum_rows(Stream stream, const void* x, Type type, const int32_t* begins, const int32_t* rows, float* y,
              int64_t count, int64_t width);
// y [segments, width]: the mean of rows [borders[s], borders[s + 1]) of x [·, width], 0 for empty segments.
void segment_mean(Stream stream, Matrix x, const int32_t* borders, float* y, int64_t segments, int64_t width);
// The gradient of x [rows, width], given that of y [segments, width].
void segment_mean_backward(Stream stream, const float* grad, const int32_t* borders, float* grad_x,
                           int64_t rows, int64_t segments, int64_t width);

// ---- rows of logits (logprob.cu) ----

// For logits [rows, vocab] fp32 and z = softcap·tanh(logit/softcap)/temperature, computes for each row log
// softmax(z)[target], the entropy, the rank (number of logits above the target's) and log Σ exp z. A target
// outside [0, vocab) gives log-probability NaN and rank -1.
void token_logprobs(Stream stream, const float* logits, const int64_t* targets, double temperature,
                    double softcap, float* logprobs, float* entropy, int64_t* rank, float* lse, int64_t rows,
                    int64_t vocab);
// Overwrites the logits with the derivative of Σ grad_logprobs·logprob + grad_entropy·entropy by the logits,
// in `type`; each row starts at the same address as before. grad_logprobs null means ones, grad_entropy null
// zeros.
void token_logprobs_slope(Stream stream, float* logits, const int64_t* targets, double temperature,
                          double softcap, const float* lse, const float* entropy, const float* grad_logprobs,
                          const float* grad_entropy, Type type, int64_t rows, int64_t vocab);

// ---- generation (cache.cu, decode.cu, sampler.cu) ----

// Positions per page. A page is [layers][keys, values][kv_heads][kPage][head_dim] of `type`.
constexpr int64_t kPage = 16;

struct Shape {
  int64_t layers, heads, kv_heads, head_dim;
  Type type;  // of keys, values, queries and the output of attention
};

// Where a sequence's positions are stored: those before prefix_length in the pages from prefix_page on, later
// ones in the pages from tail_page on, numbered from the tail's beginning. Page numbers index the list of
// pages.
struct Place {
  int32_t prefix_length, prefix_page, tail_page;
};

// A token to run.
struct Row {
  int32_t token, position, place;  // place: index of its sequence in the list of places
  int32_t long_rope;               // 1: the sequence is long enough for the long RoPE table, if there is one
};

// x [rows, width] fp32 = table[token] · scale (+ positions[position], unless null).
void embed(Stream stream, const Row* rows, const void* table, Type table_type, const float* positions,
           float scale, float* x, int64_t count, int64_t width);

// Layout of a row of the joined product: head h of q begins at q + h · q_step; likewise for k and v.
struct Qkv {
  int64_t q, k, v, q_step, kv_step, stride;
};

// RoPE frequencies [half], and the long table or null.
struct Angles {
  const double *inv_freq, *long_inv_freq;
  double factor, long_factor;
  int64_t half;  // 0: no RoPE
};

// Normalises (RMS, weights [head_dim], or null for none) and rotates each head of q and k. Writes q to
// queries [count, heads·head_dim], and k and v to their pages of the layer, all in shape.type.
void store(Stream stream, const Row* rows, const Place* places, void* const* pages, const float* qkv,
           Qkv layout, Angles angles, const float* q_norm, const float* k_norm, bool plus_one, double eps,
           Shape shape, int64_t layer, void* queries, int64_t count);

// Causal attention of each row to the positions of its sequence up to its own: out [count, heads·head_dim] of
// shape.type. window, unless 0, limits it to the last window positions. longest is an upper bound of the
// rows' positions. room, unless null, has decode_room bytes for splitting long sequences.
void decode_attention(Stream stream, const Row* rows, const Place* places, void* const* pages,
                      const void* queries, double scale, int64_t window, double softcap, Shape shape,
                      int64_t layer, void* out, int64_t count, int64_t longest, void* room);
int64_t decode_room(Shape shape, int64_t count, int64_t longest);

// Copies the keys and values of a layer from pages, one sequence after the other, to k and v [total,
// kv_heads·head_dim] of shape.type; borders [sequences + 1] int32.
void gather(Stream stream, const Place* places, void* const* pages, const int32_t* borders, Shape shape,
            int64_t layer, void* k, void* v, int64_t sequences, int64_t total);

// A token to sample from row `logits`.
struct PickRow {
  double repetition_penalty, temperature, top_p, min_p;
  int64_t top_k;
  uint64_t seed, stream;
  uint32_t sample, position;
  int32_t logits;
  int32_t seen, seen_count;  // its range of the list of seen ids
  int32_t pad;
};

struct DrawRow {
  int32_t token;  // -2: the logits are not finite
  float logprob, raw;
};

// Samples as engine/cpu/sampler.cc does: equal keys give equal tokens, except for the rounding of sums.
// logits [rows, stride] fp32 are first capped by softcap, unless it is 0. Only picks with a penalty use
// scratch [picks, vocab] fp32; null if there are none.
void sample(Stream stream, const PickRow* picks, const int32_t* seen, const float* logits, int64_t stride,
            int64_t vocab, double softcap, float* scratch, DrawRow* draws, int64_t count);

}  // namespace rlt::cuda

#endif
