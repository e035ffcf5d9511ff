// RMS norm, rotary positions and the gated activation, each one pass over its rows.
#include "ops/block.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/kernels.h"
#include "kernels/parallel.h"
#include "rltrain.h"

namespace rlt {
namespace {

// Rows of x may lie apart, as those of a part of a fused layer's output do.
void check_rows(const at::Tensor& x, const char* what) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kFloat && (x.size(1) < 2 || x.stride(1) == 1), what,
              ": want a float32 matrix with dense rows, got ", x.scalar_type(), " ", x.sizes());
}

void check_norm(const at::Tensor& x, const at::Tensor& weight) {
  check_rows(x, "rms_norm");
  TORCH_CHECK(weight.dim() == 1 && weight.numel() == x.size(1) && weight.scalar_type() == at::kFloat &&
                  weight.is_contiguous() && x.size(1) > 0,
              "rms_norm: weight ", weight.sizes(), " does not fit x ", x.sizes());
}

std::tuple<at::Tensor, at::Tensor> rms_norm_cpu(const at::Tensor& x, const at::Tensor& weight, double eps,
                                                bool plus_one) {
  check_norm(x, weight);
  const int64_t rows = x.size(0), width = x.size(1), stride = x.stride(0);
  at::Tensor y = at::empty({rows, width}, x.options()), rstd = at::empty({rows}, x.options());
  const float *xp = x.const_data_ptr<float>(), *wp = weight.const_data_ptr<float>();
  float *yp = y.mutable_data_ptr<float>(), *rp = rstd.mutable_data_ptr<float>();
  const float shift = plus_one ? 1 : 0;
  const Kernels& k = kernels();
  parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      rp[i] = k.rms_norm(xp + i * stride, wp, shift, yp + i * width, width, static_cast<float>(eps));
    }
  });
  return {y, rstd};
}

at::Tensor rms_norm_backward_cpu(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& rstd, bool plus_one) {
  check_norm(x, weight);
  TORCH_CHECK(
      grad.sizes() == x.sizes() && grad.is_contiguous() && rstd.numel() == x.size(0) && rstd.is_contiguous(),
      "rms_norm_backward: grad ", grad.sizes(), " and rstd ", rstd.sizes(), " do not fit x ", x.sizes(),
      ", or are not dense");
  const int64_t rows = x.size(0), width = x.size(1), stride = x.stride(0);
  at::Tensor out = at::empty({rows, width}, x.options());
  const float *gp = grad.const_data_ptr<float>(), *xp = x.const_data_ptr<float>(),
              *wp = weight.const_data_ptr<float>(), *rp = rstd.const_data_ptr<float>();
  float* op = out.mutable_data_ptr<float>();
  const float shift = plus_one ? 1 : 0;
  const Kernels& k = kernels();
  parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      k.rms_norm_backward(gp + i * width, xp + i * stride, wp, shift, rp[i], op + i * width, width);
    }
  });
  return out;
}

at::Tensor rope_cpu(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t head_dim,
                    bool inverse) {
  check_rows(x, "rope");
  const int64_t rows = x.size(0), width = x.size(1), stride = x.stride(0);
  TORCH_CHECK(head_dim > 0 && width % head_dim == 0, "rope: x ", x.sizes(), " does not divide into heads of ",
              head_dim);
  TORCH_CHECK(cos.dim() == 2 && cos.size(0) == rows && 2 * cos.size(1) <= head_dim &&
                  cos.sizes() == sin.sizes() && cos.is_contiguous() && sin.is_contiguous() &&
                  cos.scalar_type() == at::kFloat && sin.scalar_type() == at::kFloat,
              "rope: cos ", cos.sizes(), " and sin ", sin.sizes(), " do not fit x ", x.sizes(),
              " with heads of ", head_dim);
  const int64_t half = cos.size(1);
  at::Tensor y = at::empty({rows, width}, x.options());
  const float *xp = x.const_data_ptr<float>(), *cp = cos.const_data_ptr<float>(),
              *sp = sin.const_data_ptr<float>();
  float* yp = y.mutable_data_ptr<float>();
  const float sign = inverse ? -1 : 1;
  const Kernels& k = kernels();
  parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t at = 0; at < width; at += head_dim) {
        k.rotate(xp + i * stride + at, cp + i * half, sp + i * half, sign, yp + i * width + at, half,
                 head_dim);
      }
    }
  });
  return y;
}

void check_gated(const at::Tensor& gate, const at::Tensor& up, int64_t activation) {
  check_rows(gate, "gated_act");
  check_rows(up, "gated_act");
  TORCH_CHECK(gate.sizes() == up.sizes(), "gated_act: gate ", gate.sizes(), " and up ", up.sizes(),
              " do not fit");
  TORCH_CHECK(activation >= RLT_ACT_SILU && activation <= RLT_ACT_RELU, "gated_act: unknown activation ",
              activation);
}

at::Tensor gated_act_cpu(const at::Tensor& gate, const at::Tensor& up, int64_t activation) {
  check_gated(gate, up, activation);
  const int64_t rows = gate.size(0), width = gate.size(1), gs = gate.stride(0), us = up.stride(0);
  at::Tensor y = at::empty({rows, width}, gate.options());
  const float *gp = gate.const_data_ptr<float>(), *vp = up.const_data_ptr<float>();
  float* yp = y.mutable_data_ptr<float>();
  const Kernels& k = kernels();
  parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      k.gate(gp + i * gs, vp + i * us, yp + i * width, width, static_cast<int32_t>(activation));
    }
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> gated_act_backward_cpu(const at::Tensor& grad, const at::Tensor& gate,
                                                          const at::Tensor& up, int64_t activation) {
  check_gated(gate, up, activation);
  TORCH_CHECK(grad.sizes() == gate.sizes() && grad.is_contiguous(), "gated_act_backward: grad ", grad.sizes(),
              " does not fit gate ", gate.sizes(), ", or is not dense");
  const int64_t rows = gate.size(0), width = gate.size(1), gs = gate.stride(0), us = up.stride(0);
  at::Tensor grad_gate = at::empty({rows, width}, gate.options()),
             grad_up = at::empty({rows, width}, gate.options());
  const float *dp = grad.const_data_ptr<float>(), *gp = gate.const_data_ptr<float>(),
              *vp = up.const_data_ptr<float>();
  float *ggp = grad_gate.mutable_data_ptr<float>(), *gup = grad_up.mutable_data_ptr<float>();
  const Kernels& k = kernels();
  parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      k.gate_backward(dp + i * width, gp + i * gs, vp + i * us, ggp + i * width, gup + i * width, width,
                      static_cast<int32_t>(activation));
    }
  });
  return {grad_gate, grad_up};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CPU, m) {
  m.impl("rms_norm", &rlt::rms_norm_cpu);
  m.impl("rms_norm_backward", &rlt::rms_norm_backward_cpu);
  m.impl("rope", &rlt::rope_cpu);
  m.impl("gated_act", &rlt::gated_act_cpu);
  m.impl("gated_act_backward", &rlt::gated_act_backward_cpu);
}
