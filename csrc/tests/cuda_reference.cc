// What the kernels of training compute, as plain loops on host memory, with sums of doubles.
#include "cuda/kernels/kernels.h"
