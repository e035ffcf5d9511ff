// Tensors as kernel arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <initializer_list>

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/stream.h"

namespace rlt {

// Makes a tensor's device the current one, as launches on its stream require.
class Launch {
 public:
  explicit Launch(const at::Tensor& t) : stream(cuda::current_stream(t.device())), guard_(t.device()) {}
  const cuda::Stream stream;

 private:
  c10::DeviceGuard guard_;
};

// Checks pointers before kernels trust them: all tensors must be float32 and on the first one's device.
inline void check_floats(const char* what, std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& t : tensors) {
    TORCH_CHECK(t.scalar_type() == at::kFloat && t.device() == tensors.begin()->device(), what,
                ": want float32 on ", tensors.begin()->device(), ", got ", t.scalar_type(), " on ",
                t.device());
  }
}

// Returns t, or a copy whose rows have no gaps inside. Rows themselves may be strided, as in a slice of a
// fused layer's output.
inline at::Tensor dense_rows(const at::Tensor& t) {
  return t.size(1) < 2 || t.stride(1) == 1 ? t : t.contiguous();
}

inline cuda::Matrix matrix(const at::Tensor& t) { return {t.const_data_ptr<float>(), t.stride(0)}; }

inline const float* floats(const at::Tensor& t) { return t.const_data_ptr<float>(); }
inline float* out(const at::Tensor& t) { return t.mutable_data_ptr<float>(); }

inline cuda::Type type_of(at::ScalarType t) {
  TORCH_CHECK(t == at::kFloat || t == at::kBFloat16 || t == at::kHalf, "kernels have no ", t);
  return t == at::kFloat ? cuda::Type::kF32 : t == at::kBFloat16 ? cuda::Type::kBF16 : cuda::Type::kF16;
}

}  // namespace rlt
