// Takes the weights of blocks by name.
#pragma once

#include <map>
#include <string>

#include "nn/transformer.h"

namespace rlt::nn {

class BlockLoader {
 public:
  // Borrows its arguments. Linear layers are added to linears by name.
  BlockLoader(Loader& load, const Config& config, std::map<std::string, Linear*>& linears);

  void read(size_t n, Block& block);
  Norm norm(const std::string& name, int64_t size);

 private:
  void take(Linear& into, const std::string& name, int64_t in, int64_t out);
  int64_t read_attention(const std::string& at, const rlt_layer_shape& shape, bool borrows, Block& block);
  int64_t read_delta(const std::string& at, Block& block);
  void read_convolution(const std::string& at, int64_t channels, Block& block);
  void read_experts(const std::string& at, Block& block);
  void read_streams(const std::string& at, Block& block);
  void read_mlp(const std::string& at, int64_t inner, Block& block);

  Loader& load_;
  const Config& c_;
  std::map<std::string, Linear*>& linears_;
  bool biased_;  // norms have biases
  int64_t index_ = 0;
};

}  // namespace rlt::nn
