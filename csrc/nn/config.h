// The choices that make a transformer.
#pragma once

#include <cmath>
#include <vector>

#include "rltrain.h"

namespace rlt::nn {

struct Rope {
  std::vector<double> inv_freq, long_inv_freq;
  double factor = 1, long_factor = 1;
  int64_t switch_length = 0;

  // Writes cosines and sines [rotary_dim / 2] of the angles of a position, in a sequence of length positions.
  void angles(int64_t position, int64_t length, float* cosines, float* sines) const;
};

// rlt_model_config with its arrays owned.
struct Config : rlt_model_config {
  // Errors name a choice that is out of range or does not fit another.
  explicit Config(const rlt_model_config& config);

  // What keeps the model from generating, "" where nothing does.
  const char* why_mute() const;
  // What the query at a position is multiplied by.
  double query_factor(int64_t position) const {
    return query_growth == 0 ? 1 : 1 + query_growth * std::log(1 + position / query_span);
  }

  std::vector<int64_t> layer_windows;
  std::vector<rlt_layer_shape> layer_shapes;
  std::vector<int32_t> layer_ropes;
  std::vector<Rope> rope_list;
};

}  // namespace rlt::nn
