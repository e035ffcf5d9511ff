#include <ATen/cuda/CUDAGraph.h>

#include "cuda/engine/graph.h"

namespace rlt::cuda {
namespace {

struct Recorded : Graph {
  mutable at::cuda::CUDAGraph graph;  // pool() is not const
  void replay() override { graph.replay(); }
};

}  // namespace

std::unique_ptr<Graph> record(const Graph* beside, const std::function<void()>& body) {
  auto made = std::make_unique<Recorded>();
  const auto pool =
      beside == nullptr ? at::cuda::graph_pool_handle() : static_cast<const Recorded*>(beside)->graph.pool();
  // Thread-local mode lets other threads wait for events and free memory during the capture.
  made->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  try {
    body();
  } catch (...) {
    made->graph.capture_end();
    throw;
  }
  made->graph.capture_end();
  return made;
}

}  // namespace rlt::cuda
