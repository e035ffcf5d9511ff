/* rltrain.h: the C interface between Go and the native core.
 *
 * - C99, no C++ types.
 * - Errors: every function that can fail returns rlt_error*. NULL means success. The caller owns an error,
 *   reads it with rlt_error_text and frees it with rlt_error_free. After an error a function has written no
 *   results, unless noted. Running out of memory is an error like any other.
 * - Handles: the caller owns a returned rlt_tensor (rlt_tensor_free). A passed one is borrowed for the call;
 *   the callee retains it if it needs it for longer.
 * - Threads: nothing depends on the calling OS thread. The grad mode is an argument, and errors are values.
 *   Functions may run concurrently unless one changes what another uses; "Changes" names what a function
 *   changes besides its results. Each calling thread gets a pool of compute threads, so it is best to compute
 *   on one.
 * - Shapes: S sequences, N packed tokens, H hidden.
 */
#ifndef RLTRAIN_H_
#define RLTRAIN_H_
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC visibility push(default)
#endif

#define RLT_ABI_VERSION 20

typedef uintptr_t rlt_tensor; /* owned at::TensorImpl*, 0 = undefined */
typedef uintptr_t rlt_op;     /* borrowed, never freed */
typedef struct rlt_error rlt_error;
typedef struct rlt_model rlt_model;
typedef struct rlt_engine rlt_engine;
typedef struct rlt_store rlt_store;
typedef struct rlt_group rlt_group;

/* Whether a call records an autograd graph. */
enum { RLT_TRAIN = 0, RLT_NO_GRAD = 1 };

/* Element types of the interface. */
enum { RLT_F32 = 0, RLT_I64 = 1, RLT_I32 = 2, RLT_BF16 = 3, RLT_F16 = 4, RLT_U8 = 5 };

/* The device of a tensor: RLT_CPU, or the number of a CUDA device. */
enum { RLT_CPU = -1 };

/* ---- core ---- */

/* RLT_ABI_VERSION of the library. Sets *libtorch to the libtorch version that it was compiled with, "2.11.0",
 * a static text. Cannot fail. */
int32_t rlt_abi_version(const char** libtorch);
/* The message of an error, one line without a C++ backtrace. Valid until e is freed. */
const char* rlt_error_text(const rlt_error* e);
/* Frees e; NULL is allowed. */
void rlt_error_free(rlt_error* e);
/* Sets the number of compute threads. Call it once, before any call that computes: threads that have already
 * run a parallel region keep their old pool. Errors: threads is not positive. Changes the settings of the
 * process, so no other call may run at the same time. */
rlt_error* rlt_init(int32_t threads);
/* Number of tensor handles that were returned and not yet freed. Cannot fail. */
int64_t rlt_live(void);
/* The best vector extension that libtorch uses on this processor, for run records: "AVX2", for example, or
 * "AVX512 and BF16" if the core uses bfloat16 products. The text is static. Cannot fail. */
const char* rlt_cpu_capability(void);

/* An instruction set that the CPU kernels are compiled for. */
typedef struct rlt_kernel_set {
  const char* name; /* static */
  int32_t runs;     /* 1 if this processor supports it, else 0 */
  double f32, bf16; /* 1e9 operations per second of one thread, by the type of weights; 0 if not measured */
} rlt_kernel_set;
/* Lists up to `room` sets, the best one last, and returns how many there are. If `measure` is not 0, measures
 * each supported set for some milliseconds. Cannot fail. */
int32_t rlt_kernel_sets(rlt_kernel_set* sets, int32_t room, int32_t measure);
/* Makes all CPU computation use a set; the default is the best one supported. Errors: no set of that name, or
 * not supported by this processor. Changes the settings of the process, so no other call may run at the same
 * time, and no model may exist. */
rlt_error* rlt_use_kernels(const char* name);

/* ---- op: every operator of libtorch and of the core, through the boxed dispatcher ---- */

/* A call's arguments are a flat tape of int64 words (kind, payload) without pointers. */
enum {
  RLT_ARG_NONE = 0,    /* - */
  RLT_ARG_TENSOR = 1,  /* handle */
  RLT_ARG_INT = 2,     /* value */
  RLT_ARG_DOUBLE = 3,  /* bits of a double */
  RLT_ARG_BOOL = 4,    /* 0 | 1 */
  RLT_ARG_INTS = 5,    /* n, values */
  RLT_ARG_TENSORS = 6, /* n, handles */
  RLT_ARG_SCALAR = 7,  /* bits of a double, passed as Scalar */
  RLT_ARG_DEVICE = 8   /* RLT_CPU, or the number of a CUDA device */
};

/* Looks up an operator, for example "aten::add" with overload "Tensor". Errors: unknown name. */
rlt_error* rlt_op_find(const char* name, const char* overload, rlt_op* op);
/* Calls op with the nargs arguments on tape, which has `words` int64 words. Missing arguments take the
 * schema's defaults. Tensor results go to rets (room for nrets) and their number to *got; other results are
 * dropped. The tape and its tensors are borrowed for the call. Errors: a malformed tape (including unused
 * words), too little room, errors of the operator. Changes what the operator changes: operators whose names
 * end in "_" change their first argument. */
rlt_error* rlt_op_call(rlt_op op, int32_t mode, const int64_t* tape, int32_t words, int32_t nargs,
                       rlt_tensor* rets, int32_t nrets, int32_t* got);

/* ---- tensor ---- */

/* Copies data (row major, dense) into a new tensor on the device. Errors: an unknown type, an invalid shape,
 * no such device. */
rlt_error* rlt_tensor_from(const void* data, int32_t dtype, const int64_t* dims, int32_t ndim, int32_t device,
                           rlt_tensor* t);
/* Maps bytes [offset, offset + size of dims) of the file as a tensor. Pages are read on first use and shared
 * between processes; writing to the tensor does not change the file. The file must not change while the
 * tensor exists; its descriptor is closed at once. Errors: the file cannot be opened or mapped, or is too
 * short. */
rlt_error* rlt_tensor_map(const char* path, int64_t offset, int32_t dtype, const int64_t* dims, int32_t ndim,
                          rlt_tensor* t);
/* Copies t, converted to dtype, into data, which the caller owns. Errors: bytes is not its exact size. */
rlt_error* rlt_tensor_read(rlt_tensor t, int32_t dtype, void* data, int64_t bytes);
/* Shape of t; dims has room for 8. Errors: t has more dimensions. */
rlt_error* rlt_tensor_shape(rlt_tensor t, int64_t* dims, int32_t* ndim);
/* Overwrites t with data (row major, F32). Errors: t is not dense F32 of count elements. Changes t. */
rlt_error* rlt_tensor_write(rlt_tensor t, const float* data, int64_t count);
/* Makes the leaf t a parameter, so that backward accumulates its gradient. Errors: t is not a leaf, or has an
 * integer type. Changes t. */
rlt_error* rlt_tensor_require_grad(rlt_tensor t);
/* The gradient of t, or 0 if there is none. The caller owns the handle, which shares the gradient's memory.
 */
rlt_error* rlt_tensor_grad(rlt_tensor t, rlt_tensor* grad);
/* Drops the gradients of n parameters. Errors: an undefined tensor. Changes their gradients. */
rlt_error* rlt_tensor_zero_grad(const rlt_tensor* ts, int32_t n);
/* Accumulates the gradient of the scalar loss into its leaves and frees the graph. Errors: loss is not a
 * scalar, or has no graph. Changes the gradients of the leaves, and the graph. */
rlt_error* rlt_tensor_backward(rlt_tensor loss);
/* Frees n handles, which no other call may still use; zeros are skipped. Cannot fail. */
void rlt_tensor_free(const rlt_tensor* ts, int32_t n);

/* ---- model ---- */

/* GELU_TANH is gelu_new or gelu_pytorch_tanh in config.json. */
enum { RLT_ACT_SILU = 0, RLT_ACT_GELU = 1, RLT_ACT_GELU_TANH = 2, RLT_ACT_RELU = 3 };

enum { RLT_NORM_RMS = 0, RLT_NORM_RMS_PLUS_ONE = 1 /* x·(1 + w) */, RLT_NORM_LAYER = 2 };
/* The linear layers that compute q, k and v: separate ones ("q", "k", "v"); one ("qkv") with the outputs of
 * all q heads, then k, then v; or one with q, k, v of head 0, then of head 1 and so on. */
enum { RLT_QKV_SPLIT = 0, RLT_QKV_FUSED = 1, RLT_QKV_INTERLEAVED = 2 };
/* How a block adds attention and MLP to x: one after the other; both from one norm of x ("attn_norm"); both
 * from x with separate norms. */
enum { RLT_RESIDUAL_SEQUENTIAL = 0, RLT_RESIDUAL_SHARED_NORM = 1, RLT_RESIDUAL_PARALLEL = 2 };

/* Norms of the outputs of attention and MLP ("post_attn_norm", "post_mlp_norm"): none; besides "attn_norm"
 * and "mlp_norm"; or instead of them. */
enum { RLT_POST_NORMS_NONE = 0, RLT_POST_NORMS_ALSO = 1, RLT_POST_NORMS_ONLY = 2 };
/* Norms of q and k before rotation, of the model's kind: none; of each head; or of all heads together, only
 * with RLT_QKV_SPLIT. */
enum { RLT_QK_NORM_NONE = 0, RLT_QK_NORM_HEADS = 1, RLT_QK_NORM_ALL = 2 };

/* Attention by the distance i − j of a query i and a key j: none; "distances.weight" [heads, D] added to the
 * scaled scores; or "distances.weight" [D, H], of which layers q and k make rows Q and K that add q_i·K and
 * k_j·Q to q_i·k_j (DeBERTa, He 2021). D = 2·max_positions − 1, for distances from 1 − max_positions on. Not
 * with RoPE; for bidirectional models with RLT_QKV_SPLIT, a key head for each head, and without windows. */
enum { RLT_DISTANCE_NONE = 0, RLT_DISTANCE_BIAS = 1, RLT_DISTANCE_CONTENT = 2 };

/* A rotary embedding (RoPE, Su 2021): angle = position · inv_freq[i], cos and sin times
 * factor. Sequences longer than switch_length use the long table (0: none do). */
typedef struct {
  const double* inv_freq;      /* [features / 2] */
  const double* long_inv_freq; /* the same, or NULL */
  double factor, long_factor;
  int64_t switch_length;
  int64_t features; /* leading features of a head that rotate, even, at most rotary_dim */
} rlt_rope;

/* What a layer has in place of the model's sizes. Its attention reads the keys and values of layer keys_of,
 * an earlier one with the same heads that makes some, or its own. With sparsity p > 0, gate's outputs become
 * what is above mean + d·deviation of a token's, less that, where p of a normal distribution is below d. */
typedef struct {
  int64_t kv_heads, head_dim, intermediate_size, keys_of;
  double sparsity;
} rlt_layer_shape;

typedef struct {
  int64_t vocab_size, hidden_size, layers, heads, kv_heads, head_dim, intermediate_size, max_positions;
  int64_t rotary_dim;     /* the most leading features of a head that rotate, even; 0: learned positions */
  int64_t token_types;    /* rows of "types", the first of which is added to all embeddings; 0: no types */
  int64_t first_position; /* row of position 0 in the table of max_positions learned positions */
  int32_t norm, activation, qkv, residual;
  int32_t gated;         /* MLP is down(act(gate(x)) · up(x)); else down(act(up(x))) */
  int32_t fused_gate_up; /* gate and up are one layer, "gate_up", gate first, or "up_gate"; only with gated */
  int32_t post_norms, qk_norm;
  int32_t rope_pairs; /* features 2i and 2i + 1 rotate together, else i and rotary_dim / 2 + i. Without norms
                         of each head and not with RLT_QKV_INTERLEAVED */
  int32_t embed_norm; /* a norm of the embeddings ("embed_norm"); without norm_after it replaces the first
                         layer's "attn_norm" */
  int32_t norm_after; /* norms follow the residual additions: "attn_norm" on x + attention, "sum_norm", if
                         there is one, on x + that, "mlp_norm" on that + MLP, no final "norm". Only with
                         RLT_RESIDUAL_SEQUENTIAL and without post_norms */
  int32_t bidirectional; /* tokens also attend to later tokens: an encoder */
  double norm_eps;
  double attention_scale;   /* of q·k */
  double embedding_scale;   /* of token embeddings, 1 = none */
  double attention_softcap; /* c·tanh(score/c), 0 = none */
  double logit_softcap;     /* of the logits, 0 = none; applied by heads and the engine, not by the model */
  const int64_t* windows;   /* [layers] a token attends to keys less than this many tokens away; 0 = all */
  const int32_t* ropes;     /* [layers] index into rope_tables; NULL if rotary_dim is 0 */
  const rlt_rope* rope_tables;
  int32_t n_ropes;
  double logit_divisor; /* of the hidden states after the final norm, and so of the logits; 0 = none */
  /* The query at position p is multiplied by 1 + query_growth · ln(1 + ⌊p / query_span⌋); 0 = none. */
  double query_growth;
  int64_t query_span;
  int64_t embedding_size; /* of embed, positions, types and embed_norm, which "embed_proj" widens; 0 =
                             hidden_size */
  int32_t shared_layers;  /* all layers are layers.0 */
  int32_t distance;
  /* Of layers with a "router": experts, how many of them a token passes, and the width of each (as
   * intermediate_size). The outputs of the most probable ones are added, times their probabilities, which
   * router_norm divides by their sum. shared_size: width of the MLP that all tokens pass besides; 0 = none.
   */
  int64_t experts, experts_per_token, expert_size, shared_size;
  int32_t router_norm;
  /* An expert's gate g and up u become min(g, limit)·σ(alpha·g) and 1 + u within ±limit; 0 = as gated. */
  double expert_limit, expert_alpha;
  int64_t delta_key_heads; /* of layers with an "a_log" */
  int32_t gated_queries; /* "q" [2·heads·d, H] makes a query and a gate of each head in turn; what attention
                            returns is multiplied by the gate's sigmoid. Only with RLT_QKV_SPLIT */
  int32_t router_sigmoid; /* experts have the sigmoids of the router's outputs instead of their softmax */
  double router_scale;    /* of the experts' sum; 0 = none */
  int32_t woven_experts;  /* the rows of gate and up take turns in adapters of "experts.gate_up" */
  const rlt_layer_shape* shapes; /* [layers]; NULL if all layers have the model's sizes. Only with
                                    RLT_QKV_SPLIT and without shared_layers and gated_queries */
  int32_t value_norm;            /* an RMS norm without weights of each head's values; as shapes */
} rlt_model_config;

/* Builds a model on n named weights, which it retains. Names: embed.weight [V, H]; positions.weight [P, H] if
 * rotary_dim is 0, optional with distances; types.weight [T, H]; embed_norm; embed_proj [H, E]; distances;
 * layers.N.attn_norm, sum_norm, q [heads·d, H], k, v [kv·d, H] or qkv, q_norm, k_norm [d] or as wide as q and
 * k, o [H, heads·d], sinks [heads], scores of each head that have no value; or conv [H, taps] with qkv [3H,
 * H] and o [H, H] instead of attention: C · conv(B · x), where qkv makes B, C and x; or a_log and dt_bias
 * [n], delta_norm [v], conv [2·K + n·v, taps], qkv [2·K + n·v, H], z [n·v, H], rate and decay [n, H] and o
 * [H, n·v], a gated delta rule with keys of width K in delta_key_heads heads; post_attn_norm, mlp_norm, gate,
 * up [I, H] or gate_up or up_gate [2I, H], down [H, I], post_mlp_norm; router [E, H], router_bias [E], added
 * to the probabilities to choose experts, but not to weigh them, experts.M.gate, up and down, shared_gate [1,
 * H], whose sigmoid multiplies the MLP that all tokens pass; with post_norms also router_norm, experts_norm,
 * post_experts_norm and post_shared_norm [H] and expert_scale [E]: experts then read experts_norm(x), x being
 * what mlp_norm reads, and the router router_norm(x) / √H; their sum, each times its scale, is
 * post_experts_norm's input, and with post_shared_norm(MLP) post_mlp_norm's; norm; head [V, H], absent if the
 * output is tied to embed. Layers with keys_of another have no k, v and k_norm; those without v have k's
 * outputs as values, only with value_norm. With laurel_left [R, H], laurel_right [H, R] and post_laurel_norm,
 * attention's sum is added to y + post_laurel_norm(laurel_right(laurel_left(y))) and divided by √2, where y
 * is attn_norm's output. With inputs [V, L·P], inputs_proj [L·P, H] and inputs_norm [P], each of the L layers
 * has input_gate [P, H], input_proj [H, P] and post_input_norm, and adds
 * post_input_norm(input_proj(activation(input_gate(x)) · i)) at its end, where i is P features of
 * (√P·inputs[token] + inputs_norm(inputs_proj(e) / √H)) / √2, with e the embedding. A layer's output is times
 * its scalar [1], which is not trained. Only the first rows of inputs may be there: other tokens have row 0.
 * With spread.S and merge.S [H, H], one for each stream but the first, there are S streams of hidden states
 * (AltUp); each layer has streams_norm [H], streams_router [S, H], predict [S², S], correct [S, S], and maybe
 * streams_scale [H], of the first stream where its input reads it. What the input makes is added to the other
 * streams. Layers with a router, sinks or a conv, and models with value_norm, run on the CPU only; with a
 * router gated, one sum after the other. Each name ends in
 * ".weight", with an optional ".bias". Layer norms have biases if "norm" has one, and always with norm_after.
 * Linear weights may be F32, BF16 or F16; others are F32. A weight that requires a gradient is trained.
 *
 * A linear weight of a layer, or head, may be quantised: layers.N.q.nf4 instead of layers.N.q.weight, U8
 * [out, bytes per row] on the CPU, in the format of the operator rltrain::quantize or of a GGUF file. They
 * are int8, nf4, q4_0, q4_1, q8_0, q4_k and q6_k, numbered from 1 in this order. Products of a layer
 * dequantise it to BF16, or to F32 where the processor has no products of BF16; those of head to BF16.
 *
 * Copies config and its arrays. The caller owns the model (rlt_model_free). Errors: a missing, unknown or
 * misshapen weight, a choice that is out of range or incompatible with another; the message names it. */
rlt_error* rlt_model_new(const rlt_model_config* config, const char* const* names, const rlt_tensor* tensors,
                         int32_t n, rlt_model** model);

/* Puts an adapter y += scale·B·A·dropout(x) on a linear layer ("layers.0.q", "inputs_proj"): a [r, in], b
 * [out, r], both retained. With magnitude [out], which is trained, each row of W + scale·B·A has that norm
 * (DoRA); 0 = none. All experts of a layer have one: "layers.0.experts.gate_up" and "layers.0.experts.down",
 * without magnitude: a [E·r, in] with the rows of one expert after those of another, b [out, r·E] with the
 * columns of the same rank side by side, rows of gate before those of up. They take no dropout. Replaces the
 * layer's previous adapter. Errors: no such layer, a misshapen tensor, a layer whose weight is trained.
 * Changes the model; engines see the adapter after their next refresh, but take no magnitude. */
rlt_error* rlt_model_adapt(rlt_model* model, const char* layer, rlt_tensor a, rlt_tensor b,
                           rlt_tensor magnitude, double scale);

/* One packed batch. */
typedef struct {
  rlt_tensor tokens;     /* [N] int64 */
  rlt_tensor positions;  /* [N] int64, from 0 in each sequence that does not continue another */
  rlt_tensor cu_seqlens; /* [S+1] int32, starts at 0, ends at N */
  rlt_tensor continues;  /* [S] int32, or 0: index of the sequence that each one continues, -1 for none.
                            Continuations directly follow their prefix, and their positions continue its
                            positions. Only for models without a switch_length */
  rlt_tensor rows;     /* [M] int64 below N, or 0 for all: the rows to return; the last layer skips others */
  int32_t adapter;     /* 0: ignore adapters, as for the reference policy */
  double dropout;      /* of the adapters' input, 0 = off */
  rlt_tensor row_keys; /* [N] int64, a key for each token; only with dropout */
  rlt_tensor noise;    /* [N, H] fp32, or 0: added to the tokens' embeddings, which may be narrower than H */
  int32_t checkpoint;  /* keep only the input of each block, and recompute the rest in backward */
  rlt_tensor routes;   /* [N, L·k] int32, or 0: experts of each token, as rlt_event has them; a token whose
                          first is -1 gets the most probable ones */
} rlt_model_input;

/* Computes the hidden states of the last layer, after the final norm if there is one: [N, H] fp32, or [M, H]
 * with rows. load, if not NULL, receives [2, E] of a model with experts, sums over all tokens and layers with
 * experts: the probabilities of each expert, and the tokens that it got. Errors: tokens, positions or
 * boundaries that are out of range or inconsistent, a field that the model does not support. Several passes
 * of a model may run concurrently. */
rlt_error* rlt_model_forward(rlt_model* model, int32_t mode, const rlt_model_input* input, rlt_tensor* hidden,
                             rlt_tensor* load);
/* Frees the model, which no engine may still use; NULL is allowed. */
void rlt_model_free(rlt_model* model);

/* ---- engine: completions of a causal model, by continuous batching ----
 * Every function of this part changes its engine, so calls must not overlap; different engines are
 * independent. During a call, the weights and adapters of the engine's model must not change. */

/* How tokens are sampled. The filters apply in this order; 0 turns a filter off. */
typedef struct {
  double repetition_penalty; /* > 0: divides positive logits of ids seen before, multiplies negative ones */
  double temperature;        /* divides the logits; 0: greedy, with the lowest id among equals, as are values
                                below 1/FLT_MAX (2.9e-39) */
  int64_t top_k;             /* keeps the k most likely tokens, and tokens tied with the last of them */
  double top_p;              /* keeps the smallest set of most likely tokens with this total probability */
  double min_p;              /* keeps tokens with at least this fraction of the highest probability */
} rlt_sampling;

typedef struct {
  int32_t samples; /* completions of the prompt */
  int32_t adapter; /* 0: no adapters (the reference policy); 1: the model's adapters; or a number registered
                      with rlt_engine_adapter */
  int64_t max_new; /* maximum tokens per completion */
  rlt_sampling sampling;
  /* A token is a function of the logits and of (seed, stream, sample, its index in the completion). */
  uint64_t seed, stream;
} rlt_request;

enum {
  RLT_GOES_ON = 0,
  RLT_STOPPED = 1,   /* token is one of eos */
  RLT_LENGTH = 2,    /* token is the max_new-th */
  RLT_CANCELLED = 3, /* token is -1 */
  RLT_NOT_FINITE = 4 /* token is -1: logits or their scaled values are not finite; other samples continue */
};

/* A token of a sample. */
typedef struct {
  int64_t request;
  int32_t sample, token;
  float logprob;  /* under the distribution it was sampled from; 0 if greedy */
  float raw;      /* log-softmax of the logits, after logit_softcap but before sampling parameters */
  int32_t reason; /* RLT_GOES_ON, or why the sample ended */
  /* Of a model with experts: those of the tokens that ran for this one, k in each of the L layers that have
   * some. They are all of the prompt for the sample's first token, and the token before it for another. NULL
   * without experts or token. */
  const int16_t* routes;
  int64_t n_routes; /* tokens times L·k */
} rlt_event;

/* Makes an engine for a model, which must outlive it. On the CPU the engine packs a copy of the weights in
 * their type; on a CUDA device it joins weights with the same input in place. slots is the maximum number of
 * concurrent samples. eos lists n_eos token ids that end a sample; copied. The caller owns the engine
 * (rlt_engine_free). Errors: slots is not positive, an eos is out of range, the model cannot generate
 * (bidirectional, norm_after, embed_norm, token_types or first_position). */
rlt_error* rlt_engine_new(const rlt_model* model, int32_t slots, const int32_t* eos, int32_t n_eos,
                          rlt_engine** engine);
/* Queues a request for samples of a prompt of n tokens; *id is 1 or more. The samples share the keys and
 * values of the prompt, which are computed once. If a RoPE has a long table, prompt + max_new decides whether
 * it is used. Copies request and prompt. Errors: a value out of range, named in the message; nothing is
 * queued then. */
rlt_error* rlt_engine_submit(rlt_engine* engine, const rlt_request* request, const int32_t* prompt, int64_t n,
                             int64_t* id);
/* Gives free slots to samples in order of submission, then runs the model on at most max_tokens tokens: one
 * of each running sample, the rest from prompts. max_tokens must be at least slots. The *n events in *events
 * belong to the engine and are valid until the next call; *n is 0 if there is no work left. Errors:
 * max_tokens too small. After an error inside the model (memory), the engine accepts only rlt_engine_cancel
 * and rlt_engine_free. */
rlt_error* rlt_engine_step(rlt_engine* engine, int64_t max_tokens, const rlt_event** events, int64_t* n);
/* Cancels a sample: the next step reports it, and its slot is free at once. Does nothing if the sample has
 * ended. Errors: no such request or sample. */
rlt_error* rlt_engine_cancel(rlt_engine* engine, int64_t request, int32_t sample);
/* Rereads adapters (rlt_model_adapt), and weights that may have changed. Errors: unfinished samples. */
rlt_error* rlt_engine_refresh(rlt_engine* engine);
/* Registers a copy of the adapters of another model with the same weights, for requests with this adapter
 * number; NULL removes them. Requests with different adapters share batches. Errors: number is not in 2 to
 * 16384, unfinished samples use it, the model has other weights. */
rlt_error* rlt_engine_adapter(rlt_engine* engine, int32_t number, const rlt_model* model);
/* Sets what runs the engines of models on CUDA devices: the result of rlt_cuda_runner (rltrain_cuda.h) from a
 * library of the same build. Changes the settings of the process. Cannot fail. */
void rlt_cuda_runs(void* runner);
/* Frees the engine; NULL is allowed. */
void rlt_engine_free(rlt_engine* engine);

/* ---- dist: processes that train together, in c10d groups over gloo ----
 * Functions of a store or group may wait for other processes, up to the timeout. They may be called from any
 * thread, one at a time for each store and group. */

/* Opens c10d's TCPStore, in which processes find each other. With listen_fd, a listening socket that it takes
 * over, it serves the store; with -1 it connects to host and port. All keys get the prefix. The caller owns
 * the store (rlt_store_free). Errors: no answer in time, or not from a store. */
rlt_error* rlt_store_open(const char* host, int32_t port, int32_t listen_fd, const char* prefix,
                          int32_t timeout_ms, rlt_store** store);
/* Sets key to a text, visible to all processes. Changes the store. Errors: the server has gone. */
rlt_error* rlt_store_set(rlt_store* store, const char* key, const char* value);
/* Waits until key is set, and copies its text, 0-terminated, to value, which has room bytes. Errors: not set
 * in time, text too long, the server has gone. */
rlt_error* rlt_store_get(rlt_store* store, const char* key, int32_t timeout_ms, char* value, int32_t room);
/* Closes the store, also for groups made from it; the server closes its port. NULL is allowed. */
void rlt_store_free(rlt_store* store);

/* Makes a group of size processes, in which this process is rank, and connects to all others over the network
 * interface with the IP address `address`. timeout_ms limits this and each later call. The store may be freed
 * once all processes have their group. The caller owns the group (rlt_group_free). Errors: no such address, a
 * process that does not connect in time. */
rlt_error* rlt_group_new(rlt_store* store, const char* address, int32_t rank, int32_t size,
                         int32_t timeout_ms, rlt_group** group);
/* Sums the gradients of n F32 parameters over all processes, which must call this with the same parameters.
 * The order of summation depends only on size. A gradient missing in some processes counts as 0 there and is
 * created; one missing in all stays missing. Changes the gradients. Errors: a gradient that is not dense, a
 * process that has gone or is late. */
rlt_error* rlt_group_sum_grads(rlt_group* group, const rlt_tensor* params, int32_t n);
/* Concatenates data (bytes bytes) of all processes in rank order into all, which has room for size · bytes.
 * bytes is at least 1 and the same in all processes. Errors: a process that has gone or is late. */
rlt_error* rlt_group_gather(rlt_group* group, const void* data, int64_t bytes, void* all);
/* Closes the connections. NULL is allowed. No call may be in progress. */
void rlt_group_free(rlt_group* group);

#ifdef __cplusplus
#pragma GCC visibility pop
}
#endif
#endif /* RLTRAIN_H_ */
