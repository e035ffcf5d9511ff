// A model's linear layers on a device. Layers with the same input are joined into one matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "nn/linear.h"

namespace rlt::cuda {

// Whether a recorded graph that used a may use b instead: both undefined, or the same memory, shape and type.
inline bool same_place(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() &&
         a.scalar_type() == b.scalar_type();
}

// Rows [begin, end) of a pass that use an adapter. Rows without an adapter are in no range.
struct Range {
  int64_t begin, end;
  int32_t adapter;
};

class Product {
 public:
  // Borrows layers, which must outlive it.
  explicit Product(std::vector<const nn::Linear*> layers) : layers_(std::move(layers)) {}

  // Rereads weights and adapters that may have changed. Weights on the device that are not adjacent are moved
  // into one matrix, so that there is no second copy. Returns false if an address changed, so that recorded
  // graphs are invalid.
  bool refresh(c10::Device device);
  // Makes the adapters of layers adapter `number`; an empty list removes it. Returns false as refresh does.
  bool set_adapter(int32_t number, const std::vector<const nn::Linear*>& layers, c10::Device device);

  // Returns the concatenated outputs of the layers, [N, out] float32. x [N, in].
  at::Tensor operator()(const at::Tensor& x, const std::vector<Range>& ranges) const;
  // The same without adapters, written to y.
  void into(at::Tensor& y, const at::Tensor& x) const;
  // y += the layers' outputs.
  void add_to(at::Tensor& y, const at::Tensor& x, const std::vector<Range>& ranges) const;
  at::ScalarType type() const { return weight_.scalar_type(); }
  const std::vector<const nn::Linear*>& layers() const { return layers_; }

 private:
  // a [R, in] stacks the layers' matrices; b [out, R] is block diagonal and includes the scale.
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
