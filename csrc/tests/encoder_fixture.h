// A small encoder with random weights.
#pragma once

#include <string>
#include <vector>

#include "nn/encoder.h"
#include "support.h"

namespace rlt::test {

inline const rlt_model_config kConfig{
    /*vocab_size=*/50,           /*hidden_size=*/24,   /*layers=*/2,      /*heads=*/3,
    /*intermediate_size=*/40,    /*max_positions=*/32, /*token_types=*/2, /*first_position=*/0,
    /*activation=*/RLT_ACT_GELU, /*norm_eps=*/1e-12};

// In the order of their dropout layers.
inline std::vector<std::string> linear_layers() {
  std::vector<std::string> names;
  for (int64_t layer = 0; layer < kConfig.layers; ++layer) {
    for (const char* part : {"attention.self.query", "attention.self.key", "attention.self.value",
                             "attention.output.dense", "intermediate.dense", "output.dense"}) {
      names.push_back("encoder.layer." + std::to_string(layer) + "." + part);
    }
  }
  return names;
}

inline nn::Weights random_weights(Random& random) {
  const int64_t h = kConfig.hidden_size, inner = kConfig.intermediate_size;
  nn::Weights w;
  const auto norm = [&](const std::string& name) {
    w[name + ".weight"] = random.normal({h}, 0.2, 1);
    w[name + ".bias"] = random.normal({h}, 0.2);
  };
  w["embeddings.word_embeddings.weight"] = random.normal({kConfig.vocab_size, h});
  w["embeddings.position_embeddings.weight"] = random.normal({kConfig.max_positions, h});
  w["embeddings.token_type_embeddings.weight"] = random.normal({kConfig.token_types, h});
  norm("embeddings.LayerNorm");
  for (const std::string& name : linear_layers()) {
    const bool up = name.find("intermediate") != std::string::npos;
    const bool down = name.find("attention") == std::string::npos && !up;
    w[name + ".weight"] = random.normal({up ? inner : h, down ? inner : h}, 0.2);
    w[name + ".bias"] = random.normal({up ? inner : h}, 0.2);
  }
  for (int64_t layer = 0; layer < kConfig.layers; ++layer) {
    norm("encoder.layer." + std::to_string(layer) + ".attention.output.LayerNorm");
    norm("encoder.layer." + std::to_string(layer) + ".output.LayerNorm");
  }
  return w;
}

}  // namespace rlt::test
