// Reference loops for the training kernels, on host memory, with sums in double.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>

#include "cuda/kernels/kernels.h"
#include "rltrain.h"

namespace rlt::cuda {
namespace {

void put(void* y, Type type, int64_t i, double value) {
  const auto v = static_cast<float>(value);
  switch (type) {
    case Type::kF32:
      static_cast<float*>(y)[i] = v;
      return;
    case Type::kBF16:
      static_cast<c10::BFloat16*>(y)[i] = v;
      return;
    case Type::kF16:
      static_cast<c10::Half*>(y)[i] = v;
  }
}

// The value of an activation, and its derivative in slope.
double activate(int32_t activation, double x, double* slope) {
  const double root = std::sqrt(2 / M_PI);
  switch (activation) {
    case RLT_ACT_SILU: {
      const double s = 1 / (1 + std::exp(-x));
      *slope = s + x * s * (1 - s);
      return x * s;
    }
    case RLT_ACT_GELU: {
      const double below = std::erfc(-x / std::sqrt(2.0)) / 2;
      *slope = below + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      return x * below;
    }
    case RLT_ACT_GELU_TANH: {
      const double t = std::tanh(root * (x + 0.044715 * x * x * x));
      *slope = (1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
      return x / 2 * (1 + t);
    }
    default:
      *slope = x > 0;
      return x > 0 ? x : 0;
  }
}

uint32_t mix(uint32_t h) {
  h = (h ^ h >> 16) * 0x85ebca6bU;
  h = (h ^ h >> 13) * 0xc2b2ae35U;
  return h ^ h >> 16;
}

// Scales a logit x to z, with dz/dx in slope.
double logit(double x, double temperature, double softcap, double* slope) {
  const double capped = softcap > 0 ? std::tanh(x / softcap) : 0;
  *slope = (1 - capped * capped) / temperature;
  return (softcap > 0 ? softcap * capped : x) / temperature;
}

}  // namespace

void rms_norm(Stream, Matrix x, const float* weight, bool plus_one, double eps, void* y, Type y_type,
              float* rstd, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* in = x.data + i * x.stride;
    double squares = 0;
    for (int64_t j = 0; j < width; ++j) squares += static_cast<double>(in[j]) * in[j];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (int64_t j = 0; j < width; ++j) put(y, y_type, i * width + j, in[j] * scale * (plus_one + weight[j]));
    if (rstd != nullptr) rstd[i] = static_cast<float>(scale);
  }
}

void rms_norm_backward(Stream, Matrix grad, Matrix x, const float* weight, bool plus_one, const float* rstd,
                       float* grad_x, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    const float *in = x.data + i * x.stride, *of_y = grad.data + i * grad.stride;
    const double scale = rstd[i];
    const auto g = [&](int64_t j) { return static_cast<double>(of_y[j]) * (plus_one + weight[j]); };
    double products = 0;
    for (int64_t j = 0; j < width; ++j) products += g(j) * in[j] * scale;
    for (int64_t j = 0; j < width; ++j) {
      grad_x[i * width + j] =
          static_cast<float>(scale * (g(j) - in[j] * scale * products / static_cast<double>(width)));
    }
  }
}

void layer_norm(Stream, Matrix x, const float* residual, const float* weight, const float* bias, double eps,
                void* y, Type y_type, float* sum, float* mean, float* rstd, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    const auto at = [&](int64_t j) {
      return x.data[i * x.stride + j] + (residual == nullptr ? 0 : residual[i * width + j]);
    };
    double total = 0, squares = 0;
    for (int64_t j = 0; j < width; ++j) total += at(j);
    const double m = total / static_cast<double>(width);
    for (int64_t j = 0; j < width; ++j) squares += (at(j) - m) * (at(j) - m);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (int64_t j = 0; j < width; ++j) {
      put(y, y_type, i * width + j, (at(j) - m) * scale * weight[j] + bias[j]);
      if (sum != nullptr) sum[i * width + j] = at(j);
    }
    if (mean != nullptr) mean[i] = static_cast<float>(m);
    if (rstd != nullptr) rstd[i] = static_cast<float>(scale);
  }
}

void layer_norm_backward(Stream, const float* grad, const float* sum, const float* weight, const float* mean,
                         const float* rstd, float* grad_x, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    const double scale = rstd[i], n = static_cast<double>(width);
    const auto g = [&](int64_t j) { return static_cast<double>(grad[i * width + j]) * weight[j]; };
    const auto z = [&](int64_t j) { return (static_cast<double>(sum[i * width + j]) - mean[i]) * scale; };
    double gs = 0, gzs = 0;
    for (int64_t j = 0; j < width; ++j) gs += g(j), gzs += g(j) * z(j);
    for (int64_t j = 0; j < width; ++j) {
      grad_x[i * width + j] = static_cast<float>(scale * (g(j) - gs / n - z(j) * gzs / n));
    }
  }
}

void rope(Stream, Matrix x, const float* cos, const float* sin, bool inverse, float* y, int64_t rows,
          int64_t heads, int64_t head_dim, int64_t half) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* in = x.data + i * x.stride + h * head_dim;
      float* out = y + (i * heads + h) * head_dim;
      for (int64_t j = 0; j < half; ++j) {
        const float c = cos[i * half + j], s = inverse ? -sin[i * half + j] : sin[i * half + j];
        out[j] = in[j] * c - in[j + half] * s;
        out[j + half] = in[j + half] * c + in[j] * s;
      }
      for (int64_t j = 2 * half; j < head_dim; ++j) out[j] = in[j];
    }
  }
}

void gated(Stream, Matrix gate, Matrix up, int32_t activation, void* y, Type y_type, int64_t rows,
           int64_t width) {
  double slope;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      const double value = activate(activation, gate.data[i * gate.stride + j], &slope);
      put(y, y_type, i * width + j, up.data == nullptr ? value : value * up.data[i * up.stride + j]);
    }
  }
}

void gated_backward(Stream, const float* grad, Matrix gate, Matrix up, int32_t activation, float* grad_gate,
                    float* grad_up, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      double slope;
      const double value = activate(activation, gate.data[i * gate.stride + j], &slope),
                   g = grad[i * width + j];
      grad_gate[i * width + j] = static_cast<float>(g * up.data[i * up.stride + j] * slope);
      grad_up[i * width + j] = static_cast<float>(g * value);
    }
  }
}

void hash_dropout(Stream, const float* x, const int64_t* row_keys, int64_t layer, double p, float* y,
                  int64_t rows, int64_t width) {
  const auto threshold = static_cast<uint32_t>(p * 4294967296.0);
  const auto keep = static_cast<float>(1 / (1 - p));
  for (int64_t i = 0; i < rows; ++i) {
    const auto key = static_cast<uint64_t>(row_keys[i]);
    const uint32_t seed =
        mix(mix(static_cast<uint32_t>(key) ^ 0x9e3779b9U) + static_cast<uint32_t>(key >> 32)) +
        mix(static_cast<uint32_t>(layer) + 0x7f4a7c15U);
    for (int64_t j = 0; j < width; ++j) {
      const bool dropped = mix(seed + static_cast<uint32_t>(j) * 0x9e3779b9U) < threshold;
      y[i * width + j] = dropped ? 0 : x[i * width + j] * keep;
    }
  }
}

void token_logprobs(Stream, const float* logits, const int64_t* targets, double temperature, double softcap,
                    float* logprobs, float* entropy, int64_t* rank, float* lse, int64_t rows, int64_t vocab) {
  double slope;
  for (int64_t i = 0; i < rows; ++i) {
    const float* in = logits + i * vocab;
    const auto z = [&](int64_t j) { return logit(in[j], temperature, softcap, &slope); };
    const bool known = targets[i] >= 0 && targets[i] < vocab;
    double peak = z(0), sum = 0, weighted = 0;
    for (int64_t j = 1; j < vocab; ++j) peak = std::fmax(peak, z(j));
    for (int64_t j = 0; j < vocab; ++j) {
      const double e = std::exp(z(j) - peak);
      sum += e;
      if (e > 0) weighted += e * (z(j) - peak);
    }
    lse[i] = static_cast<float>(peak + std::log(sum));
    const double h = std::log(sum) - weighted / sum;
    entropy[i] = static_cast<float>(h < 0 ? 0 : h);
    logprobs[i] = std::numeric_limits<float>::quiet_NaN(), rank[i] = -1;
    if (!known) continue;
    logprobs[i] = static_cast<float>(z(targets[i]) - peak - std::log(sum));
    rank[i] = 0;
    for (int64_t j = 0; j < vocab; ++j) rank[i] += z(j) > z(targets[i]);
  }
}

void token_logprobs_slope(Stream, float* logits, const int64_t* targets, double temperature, double softcap,
                          const float* lse, const float* entropy, const float* grad_logprobs,
                          const float* grad_entropy, Type type, int64_t rows, int64_t vocab) {
  for (int64_t i = 0; i < rows; ++i) {
    float* row = logits + i * vocab;
    const double gl = grad_logprobs == nullptr ? 1 : grad_logprobs[i],
                 ge = grad_entropy == nullptr ? 0 : grad_entropy[i], h = ge == 0 ? 0 : entropy[i];
    // In-place: an element of the result is never stored past the logit it comes from.
    for (int64_t j = 0; j < vocab; ++j) {
      double slope;
      const double z = logit(row[j], temperature, softcap, &slope), log_p = std::fmax(z - lse[i], -200);
      const double by_z = (j == targets[i] ? gl : 0) - std::exp(log_p) * (gl + ge * (log_p + h));
      put(row, type, j, by_z * slope);
    }
  }
}

}  // namespace rlt::cuda
