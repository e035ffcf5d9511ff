#ifndef RLTRAIN_TORCH_CUDA_H_
#define RLTRAIN_TORCH_CUDA_H_
#include "../csrc/include/rltrain_cuda.h"

/* Opens the library and binds every function; 0 is success, else message says what is wrong. */
int rlt_open_cuda(const char* path, char* message, int size);

#endif
