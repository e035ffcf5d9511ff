// Device work that is recorded once and replayed, and the stream it runs on.
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
  // Starts the recorded work on the current stream.
  virtual void replay() = 0;
};

// Records the work that body starts on the current stream, which must not be the default stream; nothing runs
// yet. The new graph shares memory for intermediate results with `beside` (unless null), so the two must not
// run at the same time.
std::unique_ptr<Graph> record(const Graph* beside, const std::function<void()>& body);

// A stream that supports recording. Empty on the CPU.
class Lane {
 public:
  explicit Lane(c10::Device device);

  // While it exists, this thread's work goes to the lane, after the work already on the previous stream.
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
