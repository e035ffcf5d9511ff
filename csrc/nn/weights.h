// Weights by name, as a model takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>

#include "nn/linear.h"

namespace rlt::nn {

using Weights = std::map<std::string, at::Tensor>;

// Looks weights up by name, checks their shapes and notes which were taken.
class Loader {
 public:
  explicit Loader(const Weights& weights) : weights_(weights) {}

  bool has(const std::string& name) const { return weights_.count(name) != 0; }
  // Whether there is a weight of a linear layer, in any type.
  bool has_linear(const std::string& name) const { return outputs(name) > 0; }
  // How many outputs that layer has, 0 where there is none.
  int64_t outputs(const std::string& name) const;
  // The size of a weight's dimension, 0 where it has none.
  int64_t size(const std::string& name, int64_t dim) const {
    const auto found = weights_.find(name);
    return found == weights_.end() || found->second.dim() <= dim ? 0 : found->second.size(dim);
  }
  // An F32 weight.
  at::Tensor tensor(const std::string& name, c10::IntArrayRef shape);
  // A weight that may be stored as F32, BF16 or F16; a trained one is F32.
  at::Tensor stored(const std::string& name, c10::IntArrayRef shape);
  // Weight [out, in], or name.nf4 or the like with rows of blocks, and a bias [out] where there is one.
  Linear linear(const std::string& name, int64_t in, int64_t out);
  // Errors name a weight that was not taken.
  void finish() const;

 private:
  at::Tensor find(const std::string& name, c10::IntArrayRef shape);
  at::Tensor rows(const std::string& name, const QuantFormat& format, int64_t in, int64_t out);

  const Weights& weights_;
  std::set<std::string> taken_;
};

// Puts an adapter on the named layer of linears.
void adapt(const std::map<std::string, Linear*>& linears, const std::string& layer, const Adapter& adapter);

}  // namespace rlt::nn
