// A CUDA library for tests; macros choose what it reports about its GPUs.
#include <string.h>
#include "rltrain_cuda.h"
#ifndef VERSION
#define VERSION RLT_CUDA_VERSION
#endif
#ifndef MAJOR
#define MAJOR 9
#endif
static int32_t say(const char* text, char* message, int32_t size) {
  strncpy(message, text, size - 1);
  message[size - 1] = 0;
  return 1;
}
int32_t rlt_cuda_version(void) { return VERSION; }
const char* rlt_cuda_libtorch_version(void) { return LIBTORCH; }
int32_t rlt_cuda_count(int32_t* count, char* message, int32_t size) {
#ifdef OLD_DRIVER
  return say("CUDA driver version is insufficient for CUDA runtime version", message, size);
#endif
  *count = 2;
  return 0;
}
int32_t rlt_cuda_describe(int32_t device, rlt_cuda_device* what, char* message, int32_t size) {
  memset(what, 0, sizeof *what);
  strcpy(what->name, device == 0 ? "Zero" : "One");
  what->memory = 1 << 30;
  what->major = MAJOR;
  return 0;
}
void* rlt_cuda_runner(void) { return 0; }
int32_t rlt_cuda_memory(int32_t device, int64_t* figures, char* message, int32_t size) {
  if (device > 1) return say("invalid device ordinal", message, size);
  for (int i = 0; i < 5; i++) figures[i] = 10 * (device + 1) + i;
  return 0;
}
int32_t rlt_cuda_use(int32_t device, int32_t* percent, char* message, int32_t size) {
  if (device > 0) return say("the driver does not tell how busy it is", message, size);
  percent[0] = 71;
  percent[1] = 29;
  return 0;
}
#ifdef STAMP
__attribute__((used, section(".rltrain"))) static const char stamp[] = STAMP;
#endif
#ifndef NO_TRY
int32_t rlt_cuda_try(int32_t device, char* message, int32_t size) {
#ifdef BROKEN
  return say("no kernel image is available for execution on the device", message, size);
#endif
  return 0;
}
#endif
