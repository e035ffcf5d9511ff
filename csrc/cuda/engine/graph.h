// Work on a device that is recorded once and started again as a whole, and the stream that it runs on.
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <memory>
#include <optional>

namespace rlt::cuda {

class Graph {
 public:
  virtual ~Graph() = default;
  // Starts what was recorded, on the current stream.
  virtual void replay() = 0;
};

// Records what body starts on the current stream, which is not the device's default one; nothing runs yet.
// Graphs that share memory for what is in between must not run at the same time: beside is one of them, or
// null.
std::unique_ptr<Graph> record(const Graph* beside, const std::function<void()>& body);

// A stream of a device, which can be recorded on. The CPU has none.
class Lane {
 public:
  explicit Lane(c10::Device device);

  // While it lives, the thread's work goes to the lane, behind what was begun on the stream before.
  class Use {
   public:
    explicit Use(const Lane& lane);

   private:
    std::optional<c10::StreamGuard> guard_;
  };

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace rlt::cuda
