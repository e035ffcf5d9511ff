// Convolutions of rows: each row sees the last tokens of its sequence, of this pass or of the cache.
#include "engine/cpu/network.h"
#include "kernels/parallel.h"

namespace rlt::engine {

void Network::convolve(const Block& block, int64_t layer, Workspace& w) const {
  const int64_t width = config().hidden_size,
                kept_rows = static_cast<int64_t>(block.conv.weight.size()) / width - 1;
  const float* const taps = block.conv.weight.data();
  parallel_for(0, width, grain(8 * static_cast<int64_t>(w.rows.size())), [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < w.rows.size(); ++i) {
      const auto [s, position] = w.rows[i];
      const Work& span = w.spans[static_cast<size_t>(s)];
      // The place of a position: that of the one before which it is not seen any more.
      const auto recent = [&](int64_t at) {
        Segment* const segment = at < span.prefix_length ? span.prefix : span.tail;
        return kept(segment).recent(layer) + at % kept_rows * width;
      };
      const auto row = static_cast<int64_t>(i);
      const float* const from = w.qkv.data() + row * block.qkv.width();
      float* const out = w.attended.data() + row * width;
      for (int64_t j = begin; j < end; ++j) {
        const float* const tap = taps + j * (kept_rows + 1);
        const float now = from[j] * from[2 * width + j];
        float sum = tap[kept_rows] * now;
        for (int64_t lag = 1; lag <= std::min(kept_rows, position); ++lag)
          sum += tap[kept_rows - lag] * recent(position - lag)[j];
        if (!block.conv.bias.empty()) sum += block.conv.bias[static_cast<size_t>(j)];
        out[j] = from[width + j] * sum;
        recent(position)[j] = now;
      }
    }
  });
}

}  // namespace rlt::engine
