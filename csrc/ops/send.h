// Numbers of the host on a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace rlt {

// A copy of values; a GPU's is begun and not waited for.
template <typename T>
at::Tensor send(const std::vector<T>& values, c10::Device device) {
  at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())},
                at::TensorOptions(c10::CppTypeToScalarType<T>::value).pinned_memory(!device.is_cpu()));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace rlt
