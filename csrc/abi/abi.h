// Shared by the files that implement the C ABI: tensor handles, and errors as values.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "rltrain.h"

struct rlt_error {
  std::string text;
};

namespace rlt {

// Transfers ownership of t to the caller; an undefined tensor becomes 0.
rlt_tensor give(at::Tensor t);
// Returns a new reference to the tensor of a borrowed handle; 0 gives an undefined tensor.
at::Tensor borrow(rlt_tensor handle);
// Converts the exception being handled to an error owned by the caller.
rlt_error* current_exception() noexcept;

at::ScalarType scalar_type(int32_t dtype);
c10::Device device_of(int32_t device);

// Runs the body of an ABI function, so that no exception leaves the library.
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
