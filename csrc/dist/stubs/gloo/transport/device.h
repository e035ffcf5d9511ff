// Replaces gloo's header, which libtorch does not ship: declares what ProcessGroupGloo.hpp uses.
#pragma once

namespace gloo::transport {

// Only used by pointer.
class Device;
class UnboundBuffer;

}  // namespace gloo::transport
