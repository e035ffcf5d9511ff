// Samples tokens from logits.
//
// Filters follow the transformers library, in its order: repetition penalty, temperature, top-k, top-p,
// min-p. Top-k keeps ties; top-p drops the lower id of a tie first, like a stable sort by rising score.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runner.h"
#include "kernels/buffer.h"
#include "rltrain.h"

namespace rlt::engine {

// Philox4x32-10 (Salmon 2011): 64 random bits that are a function of key and counter alone.
uint64_t philox(uint64_t key, uint64_t high, uint32_t middle, uint32_t low);

// Holds scratch memory: each thread needs a sampler of its own.
class Sampler {
 public:
  // The token is kNotFinite if the logits, the penalised scores or the weights are not finite. Reads seen
  // only if there is a repetition penalty. Temperatures below 1/FLT_MAX count as that, like on a GPU.
  Draw draw(const float* logits, int64_t n, const rlt_sampling& s, const SeenIds& seen, const DrawKey& key);

 private:
  struct Candidate {
    int32_t id;
    float weight;  // its probability relative to the most likely token's
  };

  // Both return kNotFinite if weights are not finite.
  int32_t draw_all(int64_t n, double total, double u) const;
  int32_t draw_filtered(const float* scores, int64_t n, const rlt_sampling& s, float peak, double u,
                        float* logprob);
  void keep_top_k(const float* scores, int64_t n, int64_t k);
  void keep_top_p(double need);

  Buffer<float> scores_, weights_;
  Buffer<double> sums_;
  Buffer<int32_t> ids_;
  std::vector<float> values_;
  std::vector<Candidate> kept_;
};

}  // namespace rlt::engine
