// What the files behind the C ABI share: handles to tensors and errors by value.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "rltrain.h"

struct rlt_error {
  std::string text;
};

namespace rlt {

// Gives ownership of t to the caller of the ABI; an undefined tensor is 0.
rlt_tensor give(at::Tensor t);
// A new strong reference to a borrowed handle; 0 is an undefined tensor.
at::Tensor borrow(rlt_tensor handle);
// The exception now being handled, as an error owned by the caller.
rlt_error* current_exception() noexcept;

at::ScalarType scalar_type(int32_t dtype);
c10::Device device_of(int32_t device);

// Every function of the ABI runs its body in here, so that no exception crosses it.
template <typename Body>
rlt_error* guard(const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return current_exception();
  }
}

}  // namespace rlt
