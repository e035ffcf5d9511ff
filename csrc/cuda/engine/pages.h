// Memory of a device for keys and values, in pages that sequences take as they grow.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "engine/runner.h"

namespace rlt::cuda {

// Gives out pages; memory that was taken from the device is kept for the next sequences.
class Pages {
 public:
  Pages(Shape shape, c10::Device device);

  void* take();
  void give_back(void* page) { free_.push_back(page); }

 private:
  int64_t bytes_;  // of a page
  c10::Device device_;
  std::vector<at::Tensor> memory_;
  std::vector<void*> free_;
};

// Its pages hold what has been reached so far.
class PagedSegment : public engine::Segment {
 public:
  explicit PagedSegment(std::shared_ptr<Pages> pages) : pages_(std::move(pages)) {}
  ~PagedSegment() override { resize(0); }
  PagedSegment(const PagedSegment&) = delete;
  PagedSegment& operator=(const PagedSegment&) = delete;

  void resize(int64_t positions) override;
  // Makes sure of pages for the first so many positions.
  void reach(int64_t positions);
  const std::vector<void*>& pages() const { return held_; }

  at::Tensor hidden;  // [1, H] of the last token of a prompt that has run, as the head takes it

 private:
  std::shared_ptr<Pages> pages_;
  std::vector<void*> held_;
};

}  // namespace rlt::cuda
