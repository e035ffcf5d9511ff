// The store in which the processes of a group find each other.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <string>

namespace rlt::dist {

// A key-value store over TCP. torchrun serves one to its processes.
class Store final : public c10d::PrefixStore {
 public:
  // Serves the store on listen_fd, a listening socket that it takes over. With listen_fd = -1, connects to
  // host and port. All keys get the prefix.
  Store(const std::string& host, uint16_t port, int listen_fd, const std::string& prefix,
        std::chrono::milliseconds timeout);

  // Closes the connection, and the server's port. The store must not be used afterwards.
  void leave() { store_.reset(); }
};

}  // namespace rlt::dist
