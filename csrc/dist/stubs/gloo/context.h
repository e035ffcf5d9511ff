// Replaces gloo's header, which libtorch does not ship: declares what ProcessGroupGloo.hpp uses.
#pragma once

#include <chrono>

namespace gloo {

class Context {  // only used by pointer
 public:
  void setTimeout(std::chrono::milliseconds);
};

}  // namespace gloo
