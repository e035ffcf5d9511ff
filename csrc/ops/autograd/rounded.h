// What a GPU's products take of their operands.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace rlt {

// x in the type that it is multiplied in, which is all that backward needs of it too. On the CPU, which
// widens the other side instead, and for float32 that is x itself. Layers of one input follow each other, as
// those of q, k and v do, and the layer behind attention has its output: the last one is kept for them.
inline at::Tensor rounded(const at::Tensor& x, at::ScalarType type) {
  if (!x.is_cuda() || type == at::kFloat || x.is_inference()) return x;
  struct Last {
    c10::weak_intrusive_ptr<c10::TensorImpl> of;  // holds its address, so that no other tensor has that
    uint32_t version;
    at::Tensor result;
  };
  static thread_local std::optional<Last> last;
  const auto version = static_cast<uint32_t>(x._version());
  if (!last || last->of._unsafe_get_target() != x.unsafeGetTensorImpl() || last->version != version ||
      last->result.scalar_type() != type) {
    last = Last{c10::weak_intrusive_ptr<c10::TensorImpl>(x.getIntrusivePtr()), version, x.to(type)};
  }
  return last->result;
}

}  // namespace rlt
