// Kernels over one row of floats, compiled for each instruction set and chosen when the library is
// loaded. They are plain functions, not lambdas: target attributes do not reach into those.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rlt {

// Rows a task of at::parallel_for should have, so that it is worth waking a thread.
inline int64_t grain(int64_t row_length) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_length));
}

// y_j = x_j/(1-p) where a hash of (key, layer, j) keeps j, else 0.
void dropout_row(const float* x, float* y, int64_t n, int64_t key, int64_t layer, double p);

// Replaces x by softmax(scale · x) and returns log Σ exp(scale · x_j).
float softmax_row(float* x, int64_t n, float scale);

// Replaces x by exp(scale · x_j - lse).
void exp_row(float* x, int64_t n, float scale, float lse);

// Replaces dp by scale · p_j (dp_j - delta), the gradient of softmax before its scale.
void softmax_backward_row(float* dp, const float* p, int64_t n, float delta, float scale);

float dot_row(const float* x, const float* y, int64_t n);

// sum = x + residual; y = (sum - mean) · rstd · weight + bias.
void add_layer_norm_row(const float* x, const float* residual, const float* weight, const float* bias,
                        float* sum, float* y, int64_t n, float eps, float* mean, float* rstd);
// The gradient of add_layer_norm_row's sum.
void add_layer_norm_backward_row(const float* grad, const float* sum, const float* weight, float mean,
                                 float rstd, float* out, int64_t n);

// y += x
void add_row(const float* x, float* y, int64_t n);
// y = scale · x
void scale_row(const float* x, float* y, int64_t n, float scale);

}  // namespace rlt
