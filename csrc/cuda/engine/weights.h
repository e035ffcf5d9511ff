// A model's linear layers as a device multiplies by them: those of one input are one matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "nn/linear.h"

namespace rlt::cuda {

// Whether what was recorded with one would find the other: none of them, or the same memory in the same
// shape.
inline bool same_place(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() &&
         a.scalar_type() == b.scalar_type();
}

// Rows [begin, end) of a pass, by an adapter's number; rows of none are in no range.
struct Range {
  int64_t begin, end;
  int32_t adapter;
};

class Product {
 public:
  // Borrows layers, which must outlive it.
  explicit Product(std::vector<const nn::Linear*> layers) : layers_(std::move(layers)) {}

  // Reads weights and adapters where they may have changed. Weights of the device are moved together where
  // they lie apart, so that there is no second copy of them. False: something lies elsewhere now, so what was
  // recorded cannot be replayed.
  bool refresh(c10::Device device);
  // Makes those of layers the adapter of that number; none takes it away. False as above.
  bool set_adapter(int32_t number, const std::vector<const nn::Linear*>& layers, c10::Device device);

  // The layers' outputs side by side, [N, out] float32. x [N, in].
  at::Tensor operator()(const at::Tensor& x, const std::vector<Range>& ranges) const;
  // The same without adapters, to y.
  void into(at::Tensor& y, const at::Tensor& x) const;
  // y += the layers' outputs.
  void add_to(at::Tensor& y, const at::Tensor& x, const std::vector<Range>& ranges) const;
  at::ScalarType type() const { return weight_.scalar_type(); }
  const std::vector<const nn::Linear*>& layers() const { return layers_; }

 private:
  // a [R, in] of all layers; b [out, R], scaled, in whose rows of a layer all other layers' columns are 0.
  struct LowRank {
    at::Tensor a, b;
  };

  at::Tensor joined(c10::Device device) const;
  void add_adapters(at::Tensor& y, const at::Tensor& x, const std::vector<Range>& ranges) const;

  std::vector<const nn::Linear*> layers_;
  at::Tensor weight_, bias_;  // [out, in]; [out] float32 or undefined
  std::map<int32_t, LowRank> adapters_;
};

}  // namespace rlt::cuda
