/* rltrain_cuda.h: what librltrain_cuda.so gives beside the operators that it registers for CUDA when it is
 * opened.
 *
 * C99. A function that can fail returns 0 for success, or 1 with one line in message, which has room for size
 * bytes. Devices are counted from 0, among those that CUDA_VISIBLE_DEVICES shows.
 */
#ifndef RLTRAIN_CUDA_H_
#define RLTRAIN_CUDA_H_
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC visibility push(default)
#endif

#define RLT_CUDA_VERSION 3

typedef struct {
  char name[128];
  int64_t memory;       /* bytes */
  int32_t major, minor; /* compute capability */
} rlt_cuda_device;

/* RLT_CUDA_VERSION of the library. Cannot fail. */
int32_t rlt_cuda_version(void);
/* The libtorch version that the library was compiled with. The text is static. Cannot fail. */
const char* rlt_cuda_libtorch_version(void);
/* How many devices there are, at least 1. Errors: no driver, one that is too old, no device. */
int32_t rlt_cuda_count(int32_t* count, char* message, int32_t size);
/* What a device is. Errors: there is no such device. */
int32_t rlt_cuda_describe(int32_t device, rlt_cuda_device* what, char* message, int32_t size);
/* Computes something on a device. Errors: libtorch has no code for its architecture, the device is broken. */
int32_t rlt_cuda_try(int32_t device, char* message, int32_t size);
/* What runs engines there, for rlt_cuda_runs of rltrain.h. Cannot fail. */
void* rlt_cuda_runner(void);
/* What libtorch's allocator has of a device's memory, and what the device has, in bytes. figures has room for
 * 5: in use now, in use at most so far, taken from the device, free there, there in all. Errors: there is no
 * such device. */
int32_t rlt_cuda_memory(int32_t device, int64_t* figures, char* message, int32_t size);
/* How much of the last moments, up to a second, a device computed, and how much of them its memory was read
 * or written, by whatever process. percent has room for the two. Errors: the driver does not tell. */
int32_t rlt_cuda_use(int32_t device, int32_t* percent, char* message, int32_t size);

#ifdef __cplusplus
#pragma GCC visibility pop
}
#endif
#endif /* RLTRAIN_CUDA_H_ */
