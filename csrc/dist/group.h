// Processes that train together: a c10d group over gloo.
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
  // Connects to all other processes over the network interface with the IP address `address`. The store is no
  // longer needed once all processes have connected.
  Group(const c10::intrusive_ptr<Store>& store, const std::string& address, int rank, int size,
        std::chrono::milliseconds timeout);
  ~Group();

  // Sums the gradients of parameters over all processes, in an order that depends only on their number. A
  // missing gradient counts as 0; one missing in all processes stays missing.
  void sum_grads(const std::vector<at::Tensor>& params);

  // Concatenates `bytes` bytes of every process, in rank order, into all.
  void gather(const void* data, int64_t bytes, void* all);

 private:
  struct Connections;
  std::unique_ptr<Connections> connections_;
};

}  // namespace rlt::dist
