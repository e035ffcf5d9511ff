/* rltrain_cuda.h: the C interface of librltrain_cuda.so. Loading the library also registers the CUDA
 * operators.
 *
 * C99. A function that can fail returns 0 for success, or 1 with one line in message, which has room for size
 * bytes. Devices are numbered from 0 among those that CUDA_VISIBLE_DEVICES lists.
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
/* Number of devices, at least 1. Errors: no driver, a driver that is too old, no device. */
int32_t rlt_cuda_count(int32_t* count, char* message, int32_t size);
/* Describes a device. Errors: no such device. */
int32_t rlt_cuda_describe(int32_t device, rlt_cuda_device* what, char* message, int32_t size);
/* Runs a test computation on a device. Errors: libtorch has no code for its architecture, the device is
 * broken. */
int32_t rlt_cuda_try(int32_t device, char* message, int32_t size);
/* The argument for rlt_cuda_runs of rltrain.h, which makes engines run on CUDA devices. Cannot fail. */
void* rlt_cuda_runner(void);
/* Memory of libtorch's allocator and of a device, in bytes. figures has room for 5: in use now, peak in use,
 * reserved from the device, free on the device, total on the device. Errors: no such device. */
int32_t rlt_cuda_memory(int32_t device, int64_t* figures, char* message, int32_t size);
/* Utilisation of a device over the last sampling period (up to a second), by all processes: percent[0] of the
 * time with a kernel running, percent[1] with memory being read or written. Errors: the driver does not
 * report it. */
int32_t rlt_cuda_use(int32_t device, int32_t* percent, char* message, int32_t size);

#ifdef __cplusplus
#pragma GCC visibility pop
}
#endif
#endif /* RLTRAIN_CUDA_H_ */
