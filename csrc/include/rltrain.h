/* rltrain.h: the whole border between Go and the native core.
 *
 * C99, no C++ type. Every function that can fail returns rlt_error*: NULL is success, anything else
 * is owned by the caller, who reads it with rlt_error_text and frees it with rlt_error_free.
 * Handles: an rlt_tensor that a function returns is owned by the caller (rlt_tensor_free); one that a
 * function takes is borrowed for the call, and retained by the callee where it needs it for longer.
 * After an error a function's results are untouched, unless it says otherwise; running out of memory is an
 * error like others.
 * Nothing here depends on which OS thread calls: grad mode is an argument, errors travel by value.
 * At the same time: any functions may run on several threads as long as none changes what another uses. What
 * a function changes is said with it as "Changes"; one that says nothing changes only what it returns. Each
 * thread that computes has a pool of compute threads of its own, so it is best to compute on one.
 * Shapes: S sequences, N packed tokens, H hidden.
 */
#ifndef RLTRAIN_H_
#define RLTRAIN_H_
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC visibility push(default)
#endif

#define RLT_ABI_VERSION 8

typedef uintptr_t rlt_tensor; /* owned at::TensorImpl*, 0 = undefined */
typedef uintptr_t rlt_op;     /* borrowed, lives for ever */
typedef struct rlt_error rlt_error;
typedef struct rlt_model rlt_model;
typedef struct rlt_engine rlt_engine;
typedef struct rlt_store rlt_store;
typedef struct rlt_group rlt_group;

/* How one call treats autograd. */
enum { RLT_TRAIN = 0, RLT_NO_GRAD = 1 };

/* Element types that cross the border. */
enum { RLT_F32 = 0, RLT_I64 = 1, RLT_I32 = 2, RLT_BF16 = 3, RLT_F16 = 4, RLT_U8 = 5 };

/* Where a tensor lives: RLT_CPU, or the number of a CUDA device. */
enum { RLT_CPU = -1 };

/* ---- core ---- */

/* RLT_ABI_VERSION of the library. Cannot fail. */
int32_t rlt_abi_version(void);
/* The libtorch version that the library was compiled with, "2.11.0". The text is static. Cannot fail. */
const char* rlt_libtorch_version(void);
/* What went wrong, in one line without a C++ backtrace. The text belongs to e and lives as long. */
const char* rlt_error_text(const rlt_error* e);
/* Frees e; NULL is allowed. */
void rlt_error_free(rlt_error* e);
/* Sets the number of compute threads. Call once, before any other call that computes: threads that have
 * already run a parallel region keep their old pool. Errors: threads that are not positive. Changes the
 * settings of the process, so no other call may run at the same time. */
rlt_error* rlt_init(int32_t threads);
/* Tensor handles now held by the caller: those returned and not yet freed. Cannot fail. */
int64_t rlt_live(void);
/* The widest vector extension that libtorch uses on this processor, "AVX2", for run records; "AVX512 and
 * BF16" where products with weights of bfloat16 are multiplied in it. The text is static. Cannot fail. */
const char* rlt_cpu_capability(void);

/* An instruction set that the CPU's kernels are compiled for. */
typedef struct rlt_kernel_set {
  const char* name; /* static */
  int32_t runs;     /* 1 where this processor has it, else 0 */
  double f32,
      bf16; /* 1e9 operations a second of one thread, with weights of either type; 0 where not measured */
} rlt_kernel_set;
/* Lists at most `room` sets, the widest last, and returns how many there are. With `measure` not 0 those that
 * run here multiply for some milliseconds. Cannot fail. */
int32_t rlt_kernel_sets(rlt_kernel_set* sets, int32_t room, int32_t measure);
/* Makes all that the CPU computes use a set; until then it is the widest that runs. Errors: no set of that
 * name, or not on this processor. Changes the settings of the process, so no other call may run beside it,
 * and no model may be there. */
rlt_error* rlt_use_kernels(const char* name);

/* ---- op: every operator of libtorch and of ours, through the boxed dispatcher ---- */

/* A call's arguments are a flat tape of int64 words without pointers: kind, payload. */
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

/* Looks up an operator, "aten::add" with overload "Tensor"; *op lives for ever. Errors: unknown name. */
rlt_error* rlt_op_find(const char* name, const char* overload, rlt_op* op);
/* Calls op with the nargs arguments of tape (words int64 long); arguments left out take the schema's
 * defaults. Tensor results go to rets (room for nrets), other results are dropped; *got is how many.
 * The tape is read and its tensors are borrowed for the call. Errors: a malformed tape (words left over
 * included), too little room, and whatever the operator refuses. Changes what the operator changes: those
 * whose name ends in "_" their first arguments. */
rlt_error* rlt_op_call(rlt_op op, int32_t mode, const int64_t* tape, int32_t words, int32_t nargs,
                       rlt_tensor* rets, int32_t nrets, int32_t* got);

/* ---- tensor ---- */

/* Copies data (row major, dense) into a new tensor on the device. Errors: an unknown type, an impossible
 * shape, a device that is not there. */
rlt_error* rlt_tensor_from(const void* data, int32_t dtype, const int64_t* dims, int32_t ndim, int32_t device,
                           rlt_tensor* t);
/* A view of bytes [offset, offset + size of dims) of the file: pages are read on first use
 * and shared between processes; writing to the tensor leaves the file alone. The file must not change
 * while the tensor lives; its descriptor is closed at once. Errors: a file that cannot be opened or mapped,
 * or that ends before the last byte. */
rlt_error* rlt_tensor_map(const char* path, int64_t offset, int32_t dtype, const int64_t* dims, int32_t ndim,
                          rlt_tensor* t);
/* Copies t, converted to dtype, into data, which the caller owns. Errors: bytes is not its exact size. */
rlt_error* rlt_tensor_read(rlt_tensor t, int32_t dtype, void* data, int64_t bytes);
/* Shape of t; dims has room for 8. Errors: more dimensions. */
rlt_error* rlt_tensor_shape(rlt_tensor t, int64_t* dims, int32_t* ndim);
/* Where t lives. Errors: a handle of nothing. */
rlt_error* rlt_tensor_device(rlt_tensor t, int32_t* device);
/* Overwrites t in place with data (row major, F32). Errors: t is not dense F32 of count elements. Changes t.
 */
rlt_error* rlt_tensor_write(rlt_tensor t, const float* data, int64_t count);
/* Makes the leaf t a parameter: backward accumulates into its gradient. Errors: t is no leaf, or has
 * integers. Changes t. */
rlt_error* rlt_tensor_require_grad(rlt_tensor t);
/* The gradient of t, or 0 where none has been accumulated: a handle that shares the gradient's memory, owned
 * by the caller. */
rlt_error* rlt_tensor_grad(rlt_tensor t, rlt_tensor* grad);
/* Drops the gradients of n parameters. Errors: a handle of nothing. Changes their gradients. */
rlt_error* rlt_tensor_zero_grad(const rlt_tensor* ts, int32_t n);
/* Accumulates the gradient of the scalar loss into its leaves and frees the graph. Errors: loss is no scalar,
 * or was made without a graph. Changes the gradients of the leaves, and the graph. */
rlt_error* rlt_tensor_backward(rlt_tensor loss);
/* Frees n handles, of which no other call may make use then; zeros are skipped. Cannot fail. */
void rlt_tensor_free(const rlt_tensor* ts, int32_t n);

/* ---- model ---- */

/* GELU_TANH is what config.json calls gelu_new or gelu_pytorch_tanh. */
enum { RLT_ACT_SILU = 0, RLT_ACT_GELU = 1, RLT_ACT_GELU_TANH = 2, RLT_ACT_RELU = 3 };

enum { RLT_NORM_RMS = 0, RLT_NORM_RMS_PLUS_ONE = 1 /* x·(1 + w) */, RLT_NORM_LAYER = 2 };
/* Which linear layers make q, k and v: three of their own ("q", "k", "v"); one ("qkv") whose outputs are
 * all of q, then of k, then of v; or one whose outputs are q, k, v of head 0, then of head 1 and so on. */
enum { RLT_QKV_SPLIT = 0, RLT_QKV_FUSED = 1, RLT_QKV_INTERLEAVED = 2 };
/* How a block adds attention and MLP to x: one after the other; both from one norm of x ("attn_norm");
 * both from x, each with a norm of its own. */
enum { RLT_RESIDUAL_SEQUENTIAL = 0, RLT_RESIDUAL_SHARED_NORM = 1, RLT_RESIDUAL_PARALLEL = 2 };

/* One way to rotate queries and keys (RoPE, Su 2021, halves rotated): angle = position · inv_freq[i],
 * cos and sin times factor. A sequence longer than switch_length takes the long table (0: never does). */
typedef struct {
  const double* inv_freq;      /* [rotary_dim / 2] */
  const double* long_inv_freq; /* the same, or NULL */
  double factor, long_factor;
  int64_t switch_length;
} rlt_rope;

typedef struct {
  int64_t vocab_size, hidden_size, layers, heads, kv_heads, head_dim, intermediate_size, max_positions;
  int64_t rotary_dim;  /* leading features of a head that rotate, even; 0: learned positions */
  int64_t token_types; /* rows of "types", of which the first is added to all embeddings; 0: there are none */
  int64_t first_position; /* row of the learned positions, max_positions of them, that position 0 takes */
  int32_t norm, activation, qkv, residual;
  int32_t gated;         /* MLP is down(act(gate(x)) · up(x)); else down(act(up(x))) */
  int32_t fused_gate_up; /* gate and up are one layer, "gate_up", gate first; only with gated */
  int32_t post_norms;    /* a norm on what attention and MLP add ("post_attn_norm", "post_mlp_norm") */
  int32_t qk_norm;       /* an RMS norm of each head's q and k before they rotate; kind as norm */
  int32_t embed_norm;    /* a norm of the embeddings, "embed_norm"; without norm_after, the first layer has no
                            "attn_norm" then */
  int32_t norm_after; /* norms stand after the sums: "attn_norm" on x + attention, "mlp_norm" on that + MLP;
                         there is no "norm" at the end. Only with RLT_RESIDUAL_SEQUENTIAL, no post_norms */
  int32_t bidirectional; /* attention sees what comes after a token too: an encoder */
  double norm_eps;
  double attention_scale;   /* of q·k */
  double embedding_scale;   /* of token embeddings, 1 = none */
  double attention_softcap; /* c·tanh(score/c), 0 = none */
  double logit_softcap;     /* of the logits, 0 = none: the heads' business, kept for the engine */
  const int64_t* windows;   /* [layers] only keys less than so many tokens away are seen; 0 = all */
  const int32_t* ropes;     /* [layers] index into rope_tables; NULL with rotary_dim 0 */
  const rlt_rope* rope_tables;
  int32_t n_ropes;
} rlt_model_config;

/* Builds a model on n named weights, which it retains. Names: embed.weight [V, H]; positions.weight [P, H]
 * where rotary_dim is 0; types.weight [T, H]; embed_norm; layers.N.attn_norm, q [heads·d, H], k, v [kv·d, H]
 * or qkv, q_norm, k_norm [d], o [H, heads·d], post_attn_norm, mlp_norm, gate, up [I, H] or gate_up [2I, H],
 * down [H, I], post_mlp_norm; norm; head [V, H], absent where the output is tied to embed. Each ".weight",
 * and ".bias" where the model has one (layer norms of a causal model always have). Linear weights may be F32,
 * BF16 or F16, the others are F32; a weight that requires a gradient is trained. A linear weight of a layer
 * may be quantised: layers.N.q.nf4 instead of layers.N.q.weight, U8 [out, bytes of a row] on the CPU, as the
 * operator rltrain::quantize makes it or a GGUF file holds it; formats are int8, nf4, q4_0, q4_1, q8_0, q4_k
 * and q6_k, numbered from 1 in this order. Products dequantise it to BF16. What config points to is copied.
 * The model belongs to the caller (rlt_model_free). Errors name a missing, superfluous or misshapen weight,
 * or a choice that is out of range or does not fit another. */
rlt_error* rlt_model_new(const rlt_model_config* config, const char* const* names, const rlt_tensor* tensors,
                         int32_t n, rlt_model** model);

/* Puts an adapter y += scale·B·A·dropout(x) on a linear layer ("layers.0.q"); a [r, in], b [out, r], which it
 * retains. A second call for the layer replaces the first. Errors: no such layer, a misshapen a or b, a layer
 * whose weight is trained itself. Changes the model; engines see the adapter after their next refresh. */
rlt_error* rlt_model_adapt(rlt_model* model, const char* layer, rlt_tensor a, rlt_tensor b, double scale);

/* One packed batch. */
typedef struct {
  rlt_tensor tokens;     /* [N] int64 */
  rlt_tensor positions;  /* [N] int64, from 0 in each sequence that continues none */
  rlt_tensor cu_seqlens; /* [S+1] int32, starts at 0, ends at N */
  rlt_tensor continues;  /* [S] int32, or 0: the sequence whose rest each is, -1 for none; the rests follow
                            right behind it and go on with its positions. Models without a switch_length */
  rlt_tensor rows;       /* [M] int64 below N, or 0: the rows that are wanted; the last layer works for these
                            alone */
  int32_t adapter;       /* 0: as if no adapter had been put on, the reference policy */
  double dropout;        /* of the adapters' input, 0 = off */
  rlt_tensor row_keys;   /* [N] int64, a key for each token; only with dropout */
  int32_t checkpoint;    /* keep only each block's input for backward and recompute the rest */
} rlt_model_input;

/* Hidden states of the last layer after the final norm, where there is one, [N, H] fp32, or [M, H]. Errors:
 * tokens, positions or borders that are out of range or do not fit each other, a field that the model does
 * not support. Several passes of a model may run at the same time. */
rlt_error* rlt_model_forward(rlt_model* model, int32_t mode, const rlt_model_input* input,
                             rlt_tensor* hidden);
/* Frees the model, which no engine may use any more; NULL is allowed. */
void rlt_model_free(rlt_model* model);

/* ---- engine: completions of a causal model, by continuous batching ----
 * Every function of this part changes its engine: one at a time. Different engines do not share anything
 * that they change. While a call runs, the weights and adapters of its model must not change. */

/* How tokens are drawn. Filters act in this order; 0 turns each off. */
typedef struct {
  double repetition_penalty; /* > 0: logits of ids met before are divided by it, negative ones multiplied */
  double temperature;        /* divides the logits; 0: the most likely token, the lowest id among equals.
                                Below 1/FLT_MAX (2.9e-39) counts as that */
  int64_t top_k;             /* keeps the k most likely tokens, and ties of the last of them */
  double top_p;              /* keeps the fewest of those, most likely first, with this probability in sum */
  double min_p;              /* keeps those with this fraction of the most likely token's probability */
} rlt_sampling;

typedef struct {
  int32_t samples; /* completions of the prompt */
  int32_t adapter; /* 0: by the model without adapters, the reference policy; 1: with its own; or a number of
                      rlt_engine_adapter */
  int64_t max_new; /* tokens of each at most */
  rlt_sampling sampling;
  /* A token is a function of the logits and of (seed, stream, sample, its index in the completion). */
  uint64_t seed, stream;
} rlt_request;

enum {
  RLT_GOES_ON = 0,
  RLT_STOPPED = 1,   /* token is one of eos */
  RLT_LENGTH = 2,    /* token is the max_new-th */
  RLT_CANCELLED = 3, /* token is -1 */
  RLT_NOT_FINITE = 4 /* token is -1: its logits, or what the sampling parameters make of them, are not finite;
                        other samples go on */
};

/* A token of a sample. */
typedef struct {
  int64_t request;
  int32_t sample, token;
  float logprob;  /* under the distribution it was drawn from: 0 where greedy */
  float raw;      /* log-softmax of the logits, as they come from the head and logit_softcap */
  int32_t reason; /* RLT_GOES_ON, or how the sample ended */
} rlt_event;

/* Makes an engine for a model, which must outlive it. On the CPU it packs the weights, a copy of them in
 * their own type; on a CUDA device it moves those of one input together. slots is how many samples run at the
 * same time. eos are n_eos token ids that end a sample, copied. The engine belongs to the caller
 * (rlt_engine_free). Errors: slots that are not positive, an eos that is out of range, a model that does not
 * generate: one that is bidirectional, has norm_after, embed_norm, token_types or first_position. */
rlt_error* rlt_engine_new(const rlt_model* model, int32_t slots, const int32_t* eos, int32_t n_eos,
                          rlt_engine** engine);
/* Queues a request for samples of a prompt of n tokens; *id is 1 or more. The keys and values of a prompt are
 * computed once and shared by its samples. Where a rope has a long table, prompt + max_new chooses it.
 * request and prompt are copied. Errors name the value that is out of range; nothing is queued then. */
rlt_error* rlt_engine_submit(rlt_engine* engine, const rlt_request* request, const int32_t* prompt, int64_t n,
                             int64_t* id);
/* Gives free slots to samples in the order of their submission, then runs the model on at most max_tokens
 * tokens, which must be at least slots: one of each running sample, the rest of prompts. *events, *n in
 * number, belong to the engine and are valid until the next call; none where nothing is left to do. Errors:
 * too few max_tokens. After an error while the model runs (memory), the engine refuses all but
 * rlt_engine_cancel and rlt_engine_free. */
rlt_error* rlt_engine_step(rlt_engine* engine, int64_t max_tokens, const rlt_event** events, int64_t* n);
/* Ends a sample; the next step's events say so, and its slot is free at once. Nothing happens to one that has
 * ended. Errors: no such request or sample. */
rlt_error* rlt_engine_cancel(rlt_engine* engine, int64_t request, int32_t sample);
/* Reads the adapters as last put on by rlt_model_adapt, and weights that may have changed. Errors: samples
 * that have not ended. */
rlt_error* rlt_engine_refresh(rlt_engine* engine);
/* Copies the adapters of another model on the same weights, which requests ask for by number from then on;
 * NULL takes them away. Requests by different adapters run in one batch. Errors: a number that is not from 2
 * to 16384, samples by it that have not ended, a model of other weights. */
rlt_error* rlt_engine_adapter(rlt_engine* engine, int32_t number, const rlt_model* model);
/* Says what runs the engines of models on CUDA devices: what rlt_cuda_runner of rltrain_cuda.h returns, from
 * a library that was built together with this one. Changes the settings of the process. Cannot fail. */
void rlt_cuda_runs(void* runner);
/* Frees the engine; NULL is allowed. */
void rlt_engine_free(rlt_engine* engine);

/* ---- dist: processes that compute together, by c10d's groups over gloo ----
 * The functions of a store or group that wait do so for other processes, up to the timeout, and may be called
 * from any thread; one at a time for each store and group. */

/* Opens c10d's TCPStore, in which processes find each other: as its server on listen_fd, a socket that
 * listens and is taken over, or with -1 as a client of host and port. prefix is put before every key. The
 * store belongs to the caller (rlt_store_free). Errors: nobody answers in time, or something that is no
 * store. */
rlt_error* rlt_store_open(const char* host, int32_t port, int32_t listen_fd, const char* prefix,
                          int32_t timeout_ms, rlt_store** store);
/* Sets key to a text, for all. Changes the store. Errors: the server has gone. */
rlt_error* rlt_store_set(rlt_store* store, const char* key, const char* value);
/* Waits until key is set, and writes its text with a 0 at its end to value, which has room bytes. Errors: it
 * was not set in time, it is longer, the server has gone. */
rlt_error* rlt_store_get(rlt_store* store, const char* key, int32_t timeout_ms, char* value, int32_t room);
/* Leaves the store, for groups made from it too; who serves it closes its port. NULL is allowed. */
void rlt_store_free(rlt_store* store);

/* Makes the group of size processes, of which this is rank, and connects it with each other one over the
 * network interface of address, an IP address of this machine. timeout_ms bounds this, and each later call.
 * The store may be freed once all have their group. The group belongs to the caller (rlt_group_free). Errors:
 * no such address, a process that does not come. */
rlt_error* rlt_group_new(rlt_store* store, const char* address, int32_t rank, int32_t size,
                         int32_t timeout_ms, rlt_group** group);
/* Sums the gradients of n F32 parameters over all processes, which call this with the same ones, in an order
 * that only depends on size. One that some process has not counts as 0 there, and is made; one that nobody
 * has stays away. Changes the gradients. Errors: a gradient that is not dense, a process that is gone or
 * late. */
rlt_error* rlt_group_sum_grads(rlt_group* group, const rlt_tensor* params, int32_t n);
/* Writes what each process gave, bytes of data, in the order of ranks to all, which has room for size times
 * that. bytes is at least 1 and the same everywhere. Errors: a process that is gone or late. */
rlt_error* rlt_group_gather(rlt_group* group, const void* data, int64_t bytes, void* all);
/* Ends the connections. NULL is allowed. No call may be under way. */
void rlt_group_free(rlt_group* group);

#ifdef __cplusplus
#pragma GCC visibility pop
}
#endif
#endif /* RLTRAIN_H_ */
