// Device memory for keys and values, in pages that are assigned to sequences as they grow.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "engine/runner.h"

namespace rlt::cuda {

// A page allocator. Freed pages are reused and never returned to the device.
class Pages {
 public:
  Pages(Shape shape, c10::Device device);

  void* take();
  void give_back(void* page) { free_.push_back(page); }

 private:
  int64_t bytes_;  // bytes per page
  c10::Device device_;
  std::vector<at::Tensor> memory_;
  std::vector<void*> free_;
};

// A segment whose pages cover the positions reached so far.
class PagedSegment : public engine::Segment {
 public:
  explicit PagedSegment(std::shared_ptr<Pages> pages) : pages_(std::move(pages)) {}
  ~PagedSegment() override { resize(0); }
  PagedSegment(const PagedSegment&) = delete;
  PagedSegment& operator=(const PagedSegment&) = delete;

  void resize(int64_t positions) override;
  // Allocates pages for the first `positions` positions.
  void reach(int64_t positions);
  const std::vector<void*>& pages() const { return held_; }

  at::Tensor hidden;  // [1, H], the head's input for the last token of a finished prompt

 private:
  std::shared_ptr<Pages> pages_;
  std::vector<void*> held_;
};

}  // namespace rlt::cuda
