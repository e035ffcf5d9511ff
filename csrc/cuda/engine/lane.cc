#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "cuda/engine/graph.h"

namespace rlt::cuda {

Lane::Lane(c10::Device device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

Lane::Use::Use(const Lane& lane) {
  if (!lane.stream_) return;
  const c10::impl::VirtualGuardImpl device(lane.stream_->device_type());
  c10::Event begun(lane.stream_->device_type());
  begun.record(device.getStream(lane.stream_->device()));
  begun.block(*lane.stream_);
  guard_.emplace(*lane.stream_);
}

}  // namespace rlt::cuda
