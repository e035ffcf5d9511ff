// Kernels over one row of a tile of logits.
#pragma once

#include <cstdint>

namespace rlt {

// How a product of hidden state and output weight becomes a logit: z = softcap · tanh((x + b)/softcap)/T,
// without the tanh where softcap is 0.
struct LogitMap {
  float temperature, softcap;

  // dz/dx = (1 - curvature · z²)/T
  float curvature() const { return softcap > 0 ? temperature / softcap * (temperature / softcap) : 0; }
  float slope(float z) const {
    return softcap > 0 ? (1 - curvature() * z * z) / temperature : 1 / temperature;
  }
};

// Replaces x by its logits; bias [n] may be null.
void logits_row(float* x, const float* bias, int64_t n, const LogitMap& map);

// A softmax whose logits come piece by piece (Milakov & Gimelshein 2018).
struct OnlineSoftmax {
  float peak = -3.402823466e38f;  // the least float: -∞ - peak must not be NaN
  double sum = 0;                 // Σ exp(z - peak)
  double weighted = 0;            // Σ exp(z - peak) (z - peak)
  int64_t above = 0;              // how many z exceed the threshold

  // Raises the peak and returns the factor, at most 1, by which the exponentials so far shrink.
  double shrink(float to);
};

// Adds the logits z to s and replaces them by exp(z - peak) (1 - curvature · z²). Returns the factor by which
// those of earlier pieces shrink, 1 unless the peak rose.
float online_softmax_row(float* z, int64_t n, float threshold, const LogitMap& map, OnlineSoftmax& s);

// Replaces logits by dL/dx, except for the target's own share of grad_logprob, where L has the gradients
// grad_logprob of log p(target) and grad_entropy of the entropy H = -Σ p log p.
void logits_backward_row(float* z, int64_t n, float lse, float entropy, float grad_logprob,
                         float grad_entropy, const LogitMap& map);

// y += f · x
void add_scaled_row(float f, const float* x, float* y, int64_t n);

}  // namespace rlt
