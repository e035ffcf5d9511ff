// Reference loops for the sequence kernels, on host memory, with sums in double.
#include <ATen/core/Tensor.h>

#include "cuda/kernels/kernels.h"

namespace rlt::cuda {
namespace {

double value(const void* x, Type type, int64_t i) {
  switch (type) {
    case Type::kF32:
      return static_cast<const float*>(x)[i];
    case Type::kBF16:
      return static_cast<float>(static_cast<const c10::BFloat16*>(x)[i]);
    case Type::kF16:
      return static_cast<float>(static_cast<const c10::Half*>(x)[i]);
  }
  return 0;
}

}  // namespace

void sum_rows(Stream, const void* x, Type type, const int32_t* begins, const int32_t* rows, float* y,
              int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t column = 0; column < width; ++column) {
      double sum = 0;
      for (int32_t j = begins[i]; j < begins[i + 1]; ++j) sum += value(x, type, rows[j] * width + column);
      y[i * width + column] = static_cast<float>(sum);
    }
  }
}

void segment_mean(Stream, Matrix x, const int32_t* borders, float* y, int64_t segments, int64_t width) {
  for (int64_t s = 0; s < segments; ++s) {
    const int64_t rows = borders[s + 1] - borders[s];
    for (int64_t column = 0; column < width; ++column) {
      double sum = 0;
      for (int64_t row = borders[s]; row < borders[s + 1]; ++row) {
        sum += static_cast<double>(x.data[row * x.stride + column]);
      }
      y[s * width + column] = rows > 0 ? static_cast<float>(sum / static_cast<double>(rows)) : 0.0f;
    }
  }
}

void segment_mean_backward(Stream, const float* grad, const int32_t* borders, float* grad_x, int64_t,
                           int64_t segments, int64_t width) {
  for (int64_t s = 0; s < segments; ++s) {
    const auto length = static_cast<float>(borders[s + 1] - borders[s]);
    for (int64_t row = borders[s]; row < borders[s + 1]; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        grad_x[row * width + column] = grad[s * width + column] / length;
      }
    }
  }
}

}  // namespace rlt::cuda
