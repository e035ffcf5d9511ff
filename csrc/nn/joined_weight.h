// The weights of layers of one input as one matrix.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <vector>

#include "nn/linear.h"

namespace rlt::nn {

// Whether weights follow each other in memory.
inline bool lie_together(const std::vector<const Linear*>& layers) {
  const at::Tensor& first = layers[0]->weight;
  int64_t next = first.storage_offset();
  for (const Linear* layer : layers) {
    const at::Tensor& w = layer->weight;
    if (!w.is_alias_of(first) || w.storage_offset() != next || !w.is_contiguous()) return false;
    next += w.numel();
  }
  return true;
}

// [Σ out, in], where the weights are. They move together where they lie apart, so that there is no second
// copy of them; only where their types differ is it one. Runs below autograd.
inline at::Tensor joined_weight(const std::vector<const Linear*>& layers) {
  const at::Tensor& first = layers[0]->weight;
  if (layers.size() == 1) return first.detach().contiguous();
  int64_t rows = 0;
  bool one_type = true;
  for (const Linear* layer : layers) {
    rows += layer->weight.size(0);
    one_type = one_type && layer->weight.scalar_type() == first.scalar_type();
  }
  const int64_t in = first.size(1);
  if (one_type && lie_together(layers)) {
    return first.detach().as_strided({rows, in}, {in, 1}, first.storage_offset());
  }
  std::vector<at::Tensor> parts;
  for (const Linear* layer : layers) parts.push_back(layer->weight.detach());
  at::Tensor all = at::cat(parts);
  if (!one_type) return all;
  int64_t row = 0;
  for (const Linear* layer : layers) {
    at::Tensor w = layer->weight;
    const int64_t n = w.size(0);
    w.set_(all.storage(), row * in, {n, in}, {in, 1});
    row += n;
  }
  return all;
}

}  // namespace rlt::nn
