// Processes that compute together: c10d's group over gloo.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "dist/store.h"

namespace rlt::dist {

class Group {
 public:
  // Connects to all others over the network interface of address, an IP address of this machine. The store is
  // not needed any more once all have come so far.
  Group(const c10::intrusive_ptr<Store>& store, const std::string& address, int rank, int size,
        std::chrono::milliseconds timeout);
  ~Group();

  // Sums the gradients of parameters over all processes, in an order that depends on their number alone. A
  // gradient that is missing counts as 0; one that all miss stays so.
  void sum_grads(const std::vector<at::Tensor>& params);

  // Puts the bytes of all processes, as many of each, one after the other into all.
  void gather(const void* data, int64_t bytes, void* all);

 private:
  struct Connections;
  std::unique_ptr<Connections> connections_;
};

}  // namespace rlt::dist
