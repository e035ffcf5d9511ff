// Rotary embeddings, gated activations and dropout. Each element is read once and written once.
#include "cuda/kernels/row.cuh"
#include "rltrain.h"

namespace rlt::cuda {
namespace {

// One block per row.
template <int N>
__global__ void rope_kernel(Matrix x, const float* cos, const float* sin, float sign, float* y, int heads,
                            int head_dim, int half) {
  const int64_t row = blockIdx.x;
  const float *in = x.data + row * x.stride, *c = cos + row * half, *s = sin + row * half;
  float* out = y + row * heads * head_dim;
  for (int i = threadIdx.x * N; i < heads * half; i += kBlock * N) {
    const int j = i % half, at = i / half * head_dim + j;
    Pack<float, N> a = load<N>(in + at), b = load<N>(in + at + half);
    const Pack<float, N> cs = load<N>(c + j), sn = load<N>(s + j);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float first = a.v[k], second = b.v[k], turn = sign * sn.v[k];
      a.v[k] = first * cs.v[k] - second * turn;
      b.v[k] = second * cs.v[k] + first * turn;
    }
    store(out + at, a);
    store(out + at + half, b);
  }
  const int rest = head_dim - 2 * half;
  for (int i = threadIdx.x * N; i < heads * rest; i += kBlock * N) {
    const int at = i / rest * head_dim + 2 * half + i % rest;
    store(out + at, load<N>(in + at));
  }
}

// The value of an activation and its derivative.
template <int Activation>
__device__ float activate(float x, float* slope) {
  if constexpr (Activation == RLT_ACT_SILU) {
    const float sigmoid = 1.0f / (1.0f + expf(-x));
    *slope = sigmoid * (1.0f + x * (1.0f - sigmoid));
    return x * sigmoid;
  } else if constexpr (Activation == RLT_ACT_GELU) {
    const float below = 0.5f * erfcf(x * -0.70710678f);  // Φ(x)
    *slope = below + x * 0.39894228f * expf(-0.5f * x * x);
    return x * below;
  } else if constexpr (Activation == RLT_ACT_GELU_TANH) {
    // ½(1 + tanh u) = sigmoid(2u).
    const float square = x * x;
    const float sigmoid = 1.0f / (1.0f + expf(-1.5957691216f * x * (1.0f + 0.044715f * square)));
    *slope = sigmoid * (1.0f + x * (1.0f - sigmoid) * 1.5957691216f * (1.0f + 0.134145f * square));
    return x * sigmoid;
  } else {
    *slope = x > 0 ? 1 : 0;
    return x > 0 ? x : 0;
  }
}

template <int N, int Activation, typename Y>
__global__ void gated_kernel(Matrix gate, Matrix up, Y* y, int64_t width) {
  const int64_t row = blockIdx.x;
  const int64_t j = (static_cast<int64_t>(blockIdx.y) * kBlock + threadIdx.x) * N;
  if (j >= width) return;
  Pack<float, N> g = load<N>(gate.data + row * gate.stride + j);
  float slope;
#pragma unroll
  for (int i = 0; i < N; ++i) g.v[i] = activate<Activation>(g.v[i], &slope);
  if (up.data != nullptr) {
    const Pack<float, N> u = load<N>(up.data + row * up.stride + j);
#pragma unroll
    for (int i = 0; i < N; ++i) g.v[i] *= u.v[i];
  }
  store(y + row * width + j, g);
}

template <int N, int Activation>
__global__ void gated_backward_kernel(const float* grad, Matrix gate, Matrix up, float* grad_gate,
                                      float* grad_up, int64_t width) {
  const int64_t row = blockIdx.x;
  const int64_t j = (static_cast<int64_t>(blockIdx.y) * kBlock + threadIdx.x) * N;
  if (j >= width) return;
  Pack<float, N> g = load<N>(gate.data + row * gate.stride + j), u = load<N>(up.data + row * up.stride + j);
  const Pack<float, N> of_y = load<N>(grad + row * width + j);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float slope;
    const float value = activate<Activation>(g.v[i], &slope);
    g.v[i] = of_y.v[i] * u.v[i] * slope;
    u.v[i] = of_y.v[i] * value;
  }
  store(grad_gate + row * width + j, g);
  store(grad_up + row * width + j, u);
}

// The 32-bit finaliser of MurmurHash3.
__device__ uint32_t mix(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bU;
  h ^= h >> 13;
  h *= 0xc2b2ae35U;
  return h ^ (h >> 16);
}

template <int N>
__global__ void hash_dropout_kernel(const float* x, const int64_t* row_keys, uint32_t layer,
                                    uint32_t threshold, float keep, float* y, int64_t width) {
  const int64_t row = blockIdx.x;
  const int64_t j = (static_cast<int64_t>(blockIdx.y) * kBlock + threadIdx.x) * N;
  if (j >= width) return;
  const auto key = static_cast<uint64_t>(row_keys[row]);
  const uint32_t seed =
      mix(mix(static_cast<uint32_t>(key) ^ 0x9e3779b9U) + static_cast<uint32_t>(key >> 32)) +
      mix(layer + 0x7f4a7c15U);
  Pack<float, N> a = load<N>(x + row * width + j);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint32_t h = mix(seed + static_cast<uint32_t>(j + i) * 0x9e3779b9U);
    a.v[i] = h < threshold ? 0 : a.v[i] * keep;
  }
  store(y + row * width + j, a);
}

// A grid whose blocks each process kBlock · n elements of a row.
dim3 tiles(int64_t rows, int64_t width, int n) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>((width + kBlock * n - 1) / (kBlock * n))};
}

// Calls body with the number of elements that a thread processes at once.
template <typename Body>
void with_packs(bool packs, const Body& body) {
  packs ? body(std::integral_constant<int, 4>()) : body(std::integral_constant<int, 1>());
}

// Calls body with the activation as a std::integral_constant.
template <typename Body>
void with_activation(int32_t activation, const Body& body) {
  switch (activation) {
    case RLT_ACT_SILU:
      return body(std::integral_constant<int, RLT_ACT_SILU>());
    case RLT_ACT_GELU:
      return body(std::integral_constant<int, RLT_ACT_GELU>());
    case RLT_ACT_GELU_TANH:
      return body(std::integral_constant<int, RLT_ACT_GELU_TANH>());
    default:
      return body(std::integral_constant<int, RLT_ACT_RELU>());
  }
}

bool in_packs(Matrix gate, Matrix up, int64_t width) {
  return width % 4 == 0 && gate.stride % 4 == 0 && up.stride % 4 == 0 && aligned(gate.data, up.data);
}

}  // namespace

void rope(Stream stream, Matrix x, const float* cos, const float* sin, bool inverse, float* y, int64_t rows,
          int64_t heads, int64_t head_dim, int64_t half) {
  if (rows == 0) return;
  const bool packs = half % 4 == 0 && head_dim % 4 == 0 && x.stride % 4 == 0 && aligned(x.data, cos, sin, y);
  with_packs(packs, [&](auto n) {
    rope_kernel<n.value><<<static_cast<unsigned>(rows), kBlock, 0, on(stream)>>>(
        x, cos, sin, inverse ? -1.0f : 1.0f, y, static_cast<int>(heads), static_cast<int>(head_dim),
        static_cast<int>(half));
  });
  check_launch("rope");
}

void gated(Stream stream, Matrix gate, Matrix up, int32_t activation, void* y, Type y_type, int64_t rows,
           int64_t width) {
  if (rows == 0 || width == 0) return;
  with_packs(in_packs(gate, up, width) && aligned(static_cast<char*>(y)), [&](auto n) {
    with_type(y_type, [&](auto* of_type) {
      with_activation(activation, [&](auto a) {
        gated_kernel<n.value, a.value><<<tiles(rows, width, n.value), kBlock, 0, on(stream)>>>(
            gate, up, static_cast<decltype(of_type)>(y), width);
      });
    });
  });
  check_launch("gated");
}

void gated_backward(Stream stream, const float* grad, Matrix gate, Matrix up, int32_t activation,
                    float* grad_gate, float* grad_up, int64_t rows, int64_t width) {
  if (rows == 0 || width == 0) return;
  with_packs(in_packs(gate, up, width) && aligned(grad, grad_gate, grad_up), [&](auto n) {
    with_activation(activation, [&](auto a) {
      gated_backward_kernel<n.value, a.value>
          <<<tiles(rows, width, n.value), kBlock, 0, on(stream)>>>(grad, gate, up, grad_gate, grad_up, width);
    });
  });
  check_launch("gated_backward");
}

void hash_dropout(Stream stream, const float* x, const int64_t* row_keys, int64_t layer, double p, float* y,
                  int64_t rows, int64_t width) {
  if (rows == 0 || width == 0) return;
  with_packs(width % 4 == 0 && aligned(x, y), [&](auto n) {
    hash_dropout_kernel<n.value><<<tiles(rows, width, n.value), kBlock, 0, on(stream)>>>(
        x, row_keys, static_cast<uint32_t>(layer), static_cast<uint32_t>(p * 4294967296.0),
        static_cast<float>(1.0 / (1.0 - p)), y, width);
  });
  check_launch("hash_dropout");
}

}  // namespace rlt::cuda
