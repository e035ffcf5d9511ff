// The core's functions that can fail, behind a count of their calls: torchtest.Fail makes one of them fail.
#include <stdatomic.h>
#include <stddef.h>

#include "../../csrc/include/rltrain.h"

static atomic_llong left;  // calls up to the one that fails

static rlt_error* injected(void) {
  rlt_op none;
  return rlt_op_find("rltrain::injected", "", &none);
}

#define FUNCTIONS(X)                                                                                     \
  X(op_call,                                                                                             \
    (rlt_op o, int32_t m, const int64_t* t, int32_t w, int32_t n, rlt_tensor* r, int32_t k, int32_t* g), \
    (o, m, t, w, n, r, k, g))                                                                            \
  X(tensor_from, (const void* p, int32_t y, const int64_t* d, int32_t n, int32_t v, rlt_tensor* t),      \
    (p, y, d, n, v, t))                                                                                  \
  X(tensor_read, (rlt_tensor t, int32_t y, void* p, int64_t n), (t, y, p, n))                            \
  X(tensor_shape, (rlt_tensor t, int64_t * d, int32_t * n), (t, d, n))                                   \
  X(tensor_write, (rlt_tensor t, const float* p, int64_t n), (t, p, n))                                  \
  X(tensor_require_grad, (rlt_tensor t), (t))                                                            \
  X(tensor_grad, (rlt_tensor t, rlt_tensor * g), (t, g))                                                 \
  X(tensor_zero_grad, (const rlt_tensor* t, int32_t n), (t, n))                                          \
  X(tensor_backward, (rlt_tensor t), (t))                                                                \
  X(model_new,                                                                                           \
    (const rlt_model_config* c, const char* const* s, const rlt_tensor* t, int32_t n, rlt_model** m),    \
    (c, s, t, n, m))                                                                                     \
  X(model_adapt, (rlt_model * m, const char* l, rlt_tensor a, rlt_tensor b, rlt_tensor g, double s),     \
    (m, l, a, b, g, s))                                                                                  \
  X(model_forward, (rlt_model * m, int32_t o, const rlt_model_input* i, rlt_tensor* h, rlt_tensor* l),   \
    (m, o, i, h, l))                                                                                     \
  X(engine_new, (const rlt_model* m, int32_t s, const int32_t* p, int32_t n, rlt_engine** e),            \
    (m, s, p, n, e))                                                                                     \
  X(engine_submit, (rlt_engine * e, const rlt_request* r, const int32_t* p, int64_t n, int64_t* i),      \
    (e, r, p, n, i))                                                                                     \
  X(engine_step, (rlt_engine * e, int64_t m, const rlt_event** v, int64_t* n), (e, m, v, n))             \
  X(engine_refresh, (rlt_engine * e), (e))                                                               \
  X(engine_adapter, (rlt_engine * e, int32_t n, const rlt_model* m), (e, n, m))

// rlt_slot_NAME of torch/loader.c holds the function that the name stands for.
#define WRAP(name, parameters, arguments)                                 \
  extern void* rlt_slot_rlt_##name __attribute__((visibility("hidden"))); \
  static rlt_error*(*real_##name)parameters;                              \
  static rlt_error* try_##name parameters {                               \
    if (atomic_fetch_sub(&left, 1) == 1) return injected();               \
    return real_##name arguments;                                         \
  }
FUNCTIONS(WRAP)

void torchtest_wrap(void) {
#define SWAP(name, parameters, arguments) \
  real_##name = rlt_slot_rlt_##name;      \
  rlt_slot_rlt_##name = try_##name;
  FUNCTIONS(SWAP)
}

void torchtest_fail(long long n) { atomic_store(&left, n); }
long long torchtest_left(void) { return atomic_load(&left); }
