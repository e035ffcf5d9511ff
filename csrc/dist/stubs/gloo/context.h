// In the place of gloo's header, which libtorch does not ship: what ProcessGroupGloo.hpp names of it.
#pragma once

#include <chrono>

namespace gloo {

class Context {  // only pointed to
 public:
  void setTimeout(std::chrono::milliseconds);
};

}  // namespace gloo
