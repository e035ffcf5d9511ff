// Binds the functions of rltrain.h when librltrain.so is opened. Each name is a single indirect jump
// through a slot, so callers use the header as if the library were linked, and nothing is loaded before
// rlt_open fills the slots.
#include "loader.h"

#include <dlfcn.h>
#include <stdio.h>

#if defined(__x86_64__)
#define JUMP(slot) "\tjmp *" slot "(%rip)\n"
#elif defined(__aarch64__)
// x16 is free for such jumps in Arm's calling convention.
#define JUMP(slot) "\tadrp x16, " slot "\n\tldr x16, [x16, :lo12:" slot "]\n\tbr x16\n"
#else
#error "the jump table is written for x86-64 and arm64"
#endif

#define RLT_FUNCTIONS(X)                                                                        \
  X(rlt_abi_version)                                                                            \
  X(rlt_error_text)                                                                             \
  X(rlt_error_free)                                                                             \
  X(rlt_init)                                                                                   \
  X(rlt_live)                                                                                   \
  X(rlt_cpu_capability)                                                                         \
  X(rlt_kernel_sets)                                                                            \
  X(rlt_use_kernels)                                                                            \
  X(rlt_op_find)                                                                                \
  X(rlt_op_call)                                                                                \
  X(rlt_tensor_from)                                                                            \
  X(rlt_tensor_map)                                                                             \
  X(rlt_tensor_read)                                                                            \
  X(rlt_tensor_shape)                                                                           \
  X(rlt_tensor_write)                                                                           \
  X(rlt_tensor_require_grad)                                                                    \
  X(rlt_tensor_grad)                                                                            \
  X(rlt_tensor_zero_grad)                                                                       \
  X(rlt_tensor_backward)                                                                        \
  X(rlt_tensor_free)                                                                            \
  X(rlt_model_new)                                                                              \
  X(rlt_model_adapt)                                                                            \
  X(rlt_model_forward)                                                                          \
  X(rlt_model_free)                                                                             \
  X(rlt_engine_new)                                                                             \
  X(rlt_engine_submit)                                                                          \
  X(rlt_engine_step)                                                                            \
  X(rlt_engine_cancel)                                                                          \
  X(rlt_engine_refresh)                                                                         \
  X(rlt_engine_adapter)                                                                         \
  X(rlt_cuda_runs)                                                                              \
  X(rlt_engine_free)                                                                            \
  X(rlt_store_open)                                                                             \
  X(rlt_store_set)                                                                              \
  X(rlt_store_get)                                                                              \
  X(rlt_store_free)                                                                             \
  X(rlt_group_new)                                                                              \
  X(rlt_group_sum_grads)                                                                        \
  X(rlt_group_gather)                                                                           \
  X(rlt_group_free)

#define DEFINE_SLOT(name)                                                 \
  __attribute__((visibility("hidden"))) void* rlt_slot_##name;            \
  __asm__(".text\n.globl " #name "\n.hidden " #name "\n.type " #name      \
          ", %function\n" #name ":\n" JUMP("rlt_slot_" #name));
RLT_FUNCTIONS(DEFINE_SLOT)

int rlt_preload(const char* path, char* message, int size) {
  if (dlopen(path, RTLD_LAZY | RTLD_LOCAL) != NULL) return 0;
  snprintf(message, (size_t)size, "%s", dlerror());
  return 1;
}

int rlt_open(const char* path, char* message, int size) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(message, (size_t)size, "%s", dlerror());
    return 1;
  }
#define FILL_SLOT(name)                                                             \
  rlt_slot_##name = dlsym(library, #name);                                          \
  if (rlt_slot_##name == NULL) {                                                    \
    snprintf(message, (size_t)size, "%s has no function %s", path, #name);          \
    return 1;                                                                       \
  }
  RLT_FUNCTIONS(FILL_SLOT)
  return 0;
}
