// Linear layers of the same input as one product: their weights packed for the tile kernels, once for all who
// read them. Passes of few rows without gradients go through it, and the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/group.h"
#include "kernels/quant_panels.h"
#include "kernels/weight_memory.h"
#include "nn/linear.h"

namespace rlt::nn {

class LinearGroup {
 public:
  // The 16 columns of a panel: outputs [row, row + count) of a layer, then zeros.
  struct Panel {
    size_t layer;
    int64_t row, count;
  };
  // A tensor as it was packed: held, so that none takes its place in memory.
  struct Seen {
    at::Tensor tensor;
    uint32_t version = 0;
    bool operator==(const Seen& o) const { return tensor.is_same(o.tensor) && version == o.version; }
  };
  // On the CPU.
  struct Weights {
    std::vector<Seen> seen;
    WeightMemory panels;  // empty where all layers are quantised
    QuantPanels quant;    // empty elsewhere
    std::vector<float> bias;
    Group group;  // all of that, as multiply_group takes it

    int64_t bytes() const { return quant.empty() ? panels.size() : quant.bytes(); }
  };
  // Empty where no layer has one.
  struct Adapters {
    Buffer<float> a, b;
    std::vector<LowRank::Share> shares;
    LowRank low;  // all of that; a width of 0 where there is none
  };

  // Borrows layers, which must outlive it; of undefined ones the group is empty. With gated, they are gate
  // and up, whose panels alternate, or a layer that holds gate's rows and then as many of up.
  explicit LinearGroup(std::vector<const Linear*> layers, bool gated = false);

  // The layers' outputs, activated, or activation(gate) · up; x [N, in]. A result of one layer, or of gate
  // and up, is as wide as that; that of others is for part.
  at::Tensor forward(const at::Tensor& x, bool adapted, int32_t activation = kNoActivation) const;
  // The only layer's outputs and residual [N, out].
  at::Tensor forward_add(const at::Tensor& x, bool adapted, const at::Tensor& residual) const;
  // Outputs of a layer among those of forward.
  at::Tensor part(const at::Tensor& y, size_t layer) const;

  // Packed when they are first asked for and where they have changed since. Groups of the same weights, those
  // of another model that shares them too, have them together.
  std::shared_ptr<const Weights> weights() const;
  // Packs the adapters of layers on the same weights: this group's own, or another model's.
  Adapters pack_adapters(const std::vector<const Linear*>& layers) const;
  const std::vector<const Linear*>& layers() const { return layers_; }
  const std::vector<Panel>& panels() const { return panels_; }
  int64_t width() const { return static_cast<int64_t>(panels_.size()) * kPanel; }
  at::ScalarType type() const;
  Element element() const;

 private:
  // Two tensors of each layer, and whether any is trained, by an optimiser that need not count versions.
  struct Now {
    std::vector<Seen> seen;
    bool trained = false;
  };
  // What passes read; replaced as a whole, so that one that is under way keeps its own.
  struct OwnAdapters {
    Adapters packed;
    std::vector<Seen> seen;
  };

  at::Tensor call(const at::Tensor& x, bool adapted, int32_t activation,
                  const OptionalTensor& residual) const;
  Now now(at::Tensor Linear::*first, at::Tensor Linear::*second) const;
  std::shared_ptr<const OwnAdapters> adapters() const;
  std::shared_ptr<const Weights> find_or_pack(std::vector<Seen> now) const;
  std::shared_ptr<const Weights> pack_all(std::vector<Seen> now) const;
  void pack_dense(Weights& to) const;

  std::vector<const Linear*> layers_;
  bool gated_;
  std::vector<Panel> panels_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Weights> weights_;
  mutable std::shared_ptr<const OwnAdapters> adapters_;
};

}  // namespace rlt::nn
