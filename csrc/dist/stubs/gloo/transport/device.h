// In the place of gloo's header, which libtorch does not ship: what ProcessGroupGloo.hpp names of it.
#pragma once

namespace gloo::transport {

// Only pointed to.
class Device;
class UnboundBuffer;

}  // namespace gloo::transport
