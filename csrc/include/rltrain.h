/* rltrain.h: the whole border between Go and the native core.
 *
 * C99, no C++ type. Every function that can fail returns rlt_error*: NULL is success, anything else
 * is owned by the caller, who reads it with rlt_error_text and frees it with rlt_error_free.
 * Handles: an rlt_tensor that a function returns is owned by the caller (rlt_tensor_free); one that a
 * function takes is borrowed for the call, and retained by the callee where it needs it for longer.
 * Nothing here depends on which OS thread calls: grad mode is an argument, errors travel by value.
 * Shapes: S sequences, N packed tokens, H hidden.
 */
#ifndef RLTRAIN_H_
#define RLTRAIN_H_
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC visibility push(default)
#endif

#define RLT_ABI_VERSION 1

typedef uintptr_t rlt_tensor; /* owned at::TensorImpl*, 0 = undefined */
typedef uintptr_t rlt_op;     /* borrowed, lives for ever */
typedef struct rlt_error rlt_error;
typedef struct rlt_model rlt_model;

/* How one call treats autograd. */
enum { RLT_TRAIN = 0, RLT_NO_GRAD = 1 };

/* Element types that cross the border. */
enum { RLT_F32 = 0, RLT_I64 = 1, RLT_I32 = 2, RLT_BF16 = 3, RLT_F16 = 4 };

/* ---- core ---- */

/* RLT_ABI_VERSION of the library. */
int32_t rlt_abi_version(void);
/* The libtorch version that the library was compiled with, "2.11.0". Static. */
const char* rlt_libtorch_version(void);
/* One line, without a C++ backtrace. Owned by e. */
const char* rlt_error_text(const rlt_error* e);
void rlt_error_free(rlt_error* e);
/* Sets the number of compute threads and the allocator's thresholds. Call once, before any other call
 * that computes: threads that have already run a parallel region keep their old pool. */
rlt_error* rlt_init(int32_t threads);
/* Tensor handles now held by the caller. */
int64_t rlt_live(void);
/* The widest vector extension that libtorch uses on this processor, "AVX2", for run records. Static. */
const char* rlt_cpu_capability(void);

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
  RLT_ARG_SCALAR = 7   /* bits of a double, passed as Scalar */
};

/* Looks up an operator, "aten::add" with overload "Tensor". Errors: unknown name. */
rlt_error* rlt_op_find(const char* name, const char* overload, rlt_op* op);
/* Calls op with the nargs arguments of tape (words int64 long); arguments left out take the schema's
 * defaults. Tensor results go to rets (room for nrets), other results are dropped; *got is how many.
 * Errors: a malformed tape (words left over included), too little room, and whatever the operator
 * refuses. */
rlt_error* rlt_op_call(rlt_op op, int32_t mode, const int64_t* tape, int32_t words, int32_t nargs,
                       rlt_tensor* rets, int32_t nrets, int32_t* got);

/* ---- tensor ---- */

/* Copies data (row major, dense) into a new tensor. */
rlt_error* rlt_tensor_from(const void* data, int32_t dtype, const int64_t* dims, int32_t ndim, rlt_tensor* t);
/* A view of bytes [offset, offset + size of dims) of the file: pages are read on first use
 * and shared between processes; writing to the tensor leaves the file alone. The file must not change
 * while the tensor lives. */
rlt_error* rlt_tensor_map(const char* path, int64_t offset, int32_t dtype, const int64_t* dims, int32_t ndim,
                          rlt_tensor* t);
/* Copies t, converted to dtype, into data; bytes must be its exact size. */
rlt_error* rlt_tensor_read(rlt_tensor t, int32_t dtype, void* data, int64_t bytes);
/* Shape of t; dims has room for 8. */
rlt_error* rlt_tensor_shape(rlt_tensor t, int64_t* dims, int32_t* ndim);
/* Overwrites t in place with data (row major, F32). */
rlt_error* rlt_tensor_write(rlt_tensor t, const float* data, int64_t count);
/* Makes the leaf t a parameter: backward accumulates into its gradient. */
rlt_error* rlt_tensor_require_grad(rlt_tensor t);
/* The gradient of t, or 0 where none has been accumulated. */
rlt_error* rlt_tensor_grad(rlt_tensor t, rlt_tensor* grad);
/* Drops the gradients of n parameters. */
rlt_error* rlt_tensor_zero_grad(const rlt_tensor* ts, int32_t n);
/* Accumulates the gradient of the scalar loss into its leaves and frees the graph. */
rlt_error* rlt_tensor_backward(rlt_tensor loss);
/* Frees n handles; zeros are skipped. */
void rlt_tensor_free(const rlt_tensor* ts, int32_t n);

/* ---- model ---- */

/* What the blocks of an encoder are: post-norm layer norm, learned positions, plain GELU MLP with
 * biases, bidirectional attention. */
typedef struct {
  int64_t vocab_size, hidden_size, layers, heads, intermediate_size, max_positions, token_types;
  double norm_eps;
} rlt_model_config;

/* Builds an encoder on n named weights, which it retains and never changes. Names are those of
 * AutoModel, "encoder.layer.0.attention.self.query.weight". Errors name a missing or misshapen one. */
rlt_error* rlt_model_new(const rlt_model_config* config, const char* const* names, const rlt_tensor* tensors,
                         int32_t n, rlt_model** model);
/* Puts an adapter y += scale·B·A·dropout(x) on a linear layer ("encoder.layer.0.attention.self.query");
 * a [r, in], b [out, r]. A second call for the layer replaces the first. */
rlt_error* rlt_model_adapt(rlt_model* model, const char* layer, rlt_tensor a, rlt_tensor b, double scale);

/* One packed batch. */
typedef struct {
  rlt_tensor tokens;     /* [N] int64 */
  rlt_tensor positions;  /* [N] int64, restarts at 0 in each sequence */
  rlt_tensor cu_seqlens; /* [S+1] int32, starts at 0, ends at N */
  int32_t adapter;       /* 0: as if no adapter had been put on, the reference policy */
  double dropout;        /* of the adapters' input, 0 = off */
  rlt_tensor row_keys;   /* [N] int64, a key for each token; only with dropout */
} rlt_model_input;

/* Hidden states of the last layer, [N, H] fp32. */
rlt_error* rlt_model_forward(rlt_model* model, int32_t mode, const rlt_model_input* input,
                             rlt_tensor* hidden);
void rlt_model_free(rlt_model* model);

#ifdef __cplusplus
#pragma GCC visibility pop
}
#endif
#endif /* RLTRAIN_H_ */
