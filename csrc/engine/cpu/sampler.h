// Draws tokens from logits.
//
// The filters are those of the transformers library, in its order: repetition penalty, temperature, top-k,
// top-p, min-p. Ties are kept by top-k; at the border of top-p the lower id goes first, as in a stable sort
// by rising score.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runner.h"
#include "kernels/buffer.h"
#include "rltrain.h"

namespace rlt::engine {

// Philox4x32-10 (Salmon 2011): 64 random bits that are a function of key and counter alone.
uint64_t philox(uint64_t key, uint64_t high, uint32_t middle, uint32_t low);

// One for each thread: it holds scratch memory.
class Sampler {
 public:
  // kNotFinite where the logits are not. seen is read only where there is a penalty.
  Draw draw(const float* logits, int64_t n, const rlt_sampling& s, const SeenIds& seen, const DrawKey& key);

 private:
  struct Candidate {
    int32_t id;
    float weight;  // its probability relative to the likeliest one's
  };

  int64_t draw_all(int64_t n, double total, double u) const;
  int64_t draw_filtered(const float* scores, int64_t n, const rlt_sampling& s, float peak, double u,
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
