// Row kernels of a decoder's block, compiled as those of rows.h are.
#pragma once

#include <cstdint>

namespace rlt {

// y = x · rstd · (shift + weight); returns rstd = 1/√(mean(x²) + eps).
float rms_norm_row(const float* x, const float* weight, float shift, float* y, int64_t n, float eps);
// The gradient of rms_norm_row's x.
void rms_norm_backward_row(const float* grad, const float* x, const float* weight, float shift, float rstd,
                           float* out, int64_t n);

// Turns (x_j, x_{j+half}) by the angle of cosine c_j and sine sign · s_j for j < half; copies the rest of
// the head's n features.
void rope_row(const float* x, const float* c, const float* s, float sign, float* y, int64_t half, int64_t n);

// y = act(gate) · up; activation is one of RLT_ACT_*.
void gated_act_row(const float* gate, const float* up, float* y, int64_t n, int64_t activation);
void gated_act_backward_row(const float* grad, const float* gate, const float* up, float* grad_gate,
                            float* grad_up, int64_t n, int64_t activation);

// x = cap · tanh(scale · x / cap)
void softcap_row(float* x, int64_t n, float scale, float cap);
// d *= 1 - (capped/cap)², the derivative of softcap_row before its scale.
void softcap_backward_row(float* d, const float* capped, int64_t n, float cap);

}  // namespace rlt
