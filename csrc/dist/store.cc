#include "dist/store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace rlt::dist {
namespace {

c10::intrusive_ptr<c10d::Store> open(const std::string& host, uint16_t port, int listen_fd,
                                     std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.timeout = timeout;
  options.waitWorkers = false;
  if (listen_fd >= 0) {
    options.isServer = true;
    options.masterListenFd = listen_fd;
  }
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace

Store::Store(const std::string& host, uint16_t port, int listen_fd, const std::string& prefix,
             std::chrono::milliseconds timeout)
    : PrefixStore(prefix, open(host, port, listen_fd, timeout)) {}

}  // namespace rlt::dist
