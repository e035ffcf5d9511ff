// Binds the functions of rltrain_cuda.h when librltrain_cuda.so is opened.
#include "cuda.h"

#include <dlfcn.h>
#include <stdio.h>

static int32_t (*version)(void);
static const char* (*libtorch_version)(void);
static int32_t (*count)(int32_t*, char*, int32_t);
static int32_t (*describe)(int32_t, rlt_cuda_device*, char*, int32_t);
static int32_t (*try_device)(int32_t, char*, int32_t);
static void* (*runner)(void);
static int32_t (*memory)(int32_t, int64_t*, char*, int32_t);
static int32_t (*use)(int32_t, int32_t*, char*, int32_t);

int rlt_open_cuda(const char* path, char* message, int size) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(message, (size_t)size, "%s", dlerror());
    return 1;
  }
#define FILL(slot, name)                                                        \
  *(void**)&slot = dlsym(library, #name);                                       \
  if (slot == NULL) {                                                           \
    snprintf(message, (size_t)size, "%s has no function %s", path, #name);      \
    return 1;                                                                   \
  }
  FILL(version, rlt_cuda_version)
  FILL(libtorch_version, rlt_cuda_libtorch_version)
  FILL(count, rlt_cuda_count)
  FILL(describe, rlt_cuda_describe)
  FILL(try_device, rlt_cuda_try)
  FILL(runner, rlt_cuda_runner)
  FILL(memory, rlt_cuda_memory)
  FILL(use, rlt_cuda_use)
  return 0;
}

int32_t rlt_cuda_version(void) { return version(); }
const char* rlt_cuda_libtorch_version(void) { return libtorch_version(); }
int32_t rlt_cuda_count(int32_t* n, char* message, int32_t size) { return count(n, message, size); }
int32_t rlt_cuda_describe(int32_t device, rlt_cuda_device* what, char* message, int32_t size) {
  return describe(device, what, message, size);
}
int32_t rlt_cuda_try(int32_t device, char* message, int32_t size) { return try_device(device, message, size); }
void* rlt_cuda_runner(void) { return runner(); }
int32_t rlt_cuda_memory(int32_t device, int64_t* figures, char* message, int32_t size) {
  return memory(device, figures, message, size);
}
int32_t rlt_cuda_use(int32_t device, int32_t* percent, char* message, int32_t size) {
  return use(device, percent, message, size);
}
