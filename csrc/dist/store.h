// The place where the processes of a group find each other.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <string>

namespace rlt::dist {

// Keys and values behind a TCP port, until it is left. torchrun serves one to its processes.
class Store final : public c10d::PrefixStore {
 public:
  // Serves the store on listen_fd, a listening socket that it takes over, or with -1 connects to host and
  // port. The keys have prefix before them.
  Store(const std::string& host, uint16_t port, int listen_fd, const std::string& prefix,
        std::chrono::milliseconds timeout);

  // Closes the connection, and the port of who serves. Nothing else may be asked of the store then.
  void leave() { store_.reset(); }
};

}  // namespace rlt::dist
