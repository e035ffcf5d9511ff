// Gated short convolutions (LFM2): B, C and x of a token's "qkv" make C · (taps of B · x).
#include "nn/block.h"
#include "ops/packed.h"

namespace rlt::nn {

at::Tensor apply_taps(const Block& block, const BlockPass& pass, const at::Tensor& x) {
  const int64_t taps = block.conv.size(1);
  const at::Tensor padded = pad_row(x);  // what comes before a text
  at::Tensor sum = x.mul(block.conv.select(1, taps - 1));
  for (int64_t lag = 1; lag < taps; ++lag) {
    const at::Tensor& rows = pass.earlier[static_cast<size_t>(lag - 1)];
    sum = sum.add(select_rows(padded, rows).mul(block.conv.select(1, taps - 1 - lag)));
  }
  return block.conv_bias.defined() ? sum.add(block.conv_bias) : sum;
}

at::Tensor convolve(const Block& block, const BlockPass& pass, const at::Tensor& wide) {
  const auto parts = wide.chunk(3, 1);
  return parts[1].mul(apply_taps(block, pass, parts[0].mul(parts[2])));
}

}  // namespace rlt::nn
