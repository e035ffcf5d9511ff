// Feeds tokens to a decoder: embedding, and in each layer writing queries, keys and values to where attention
// reads them.
#include "cuda/kernels/cache.cuh"

namespace rlt::cuda {
namespace {

// One block per row. Each step is rounded, as on the CPU.
template <typename T>
__global__ void embed_kernel(const Row* rows, const T* table, const float* positions, float scale, float* x,
                             int64_t width) {
  const Row row = rows[blockIdx.x];
  for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
    float value = __fmul_rn(widen(table[row.token * width + j]), scale);
    if (positions != nullptr) value = __fadd_rn(value, positions[row.position * width + j]);
    x[blockIdx.x * width + j] = value;
  }
}

struct StoreTask {
  const Row* rows;
  const Place* places;
  void* const* pages;
  const float* qkv;
  Qkv layout;
  Angles angles;
  const float *q_norm, *k_norm;
  float shift, eps;  // norms multiply by shift + weight
  Shape shape;
  int64_t layer;
};

// One warp normalises and rotates head `x` [d] and writes it to `to`. area [d] is the warp's shared memory.
template <typename T>
__device__ void put_head(const StoreTask& task, const float* x, const float* norm, const float* cosines,
                         const float* sines, float* area, T* to) {
  const int lane = threadIdx.x % kWarp, d = static_cast<int>(task.shape.head_dim),
            half = static_cast<int>(task.angles.half);
  float squares = 0;
  for (int j = lane; j < d; j += kWarp) {
    const float value = x[j];
    area[j] = value;
    squares += value * value;
  }
  if (norm != nullptr) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(d) + task.eps);
    for (int j = lane; j < d; j += kWarp) area[j] *= rstd * (task.shift + norm[j]);
  }
  __syncwarp();
  for (int j = lane; j < half; j += kWarp) {
    const float a = area[j], b = area[half + j], c = cosines[j], s = sines[j];
    put(a * c - b * s, to[j]);
    put(b * c + a * s, to[half + j]);
  }
  for (int j = 2 * half + lane; j < d; j += kWarp) put(area[j], to[j]);
  __syncwarp();  // the next head reuses area
}

// One block per row: angles first, then its warps take turns at the heads.
template <typename T>
__global__ void store_kernel(StoreTask task, T* queries) {
  extern __shared__ float memory[];
  const Shape& s = task.shape;
  const int d = static_cast<int>(s.head_dim), half = static_cast<int>(task.angles.half);
  float *cosines = memory, *sines = memory + half;
  const Row row = task.rows[blockIdx.x];
  const bool is_long = row.long_rope != 0 && task.angles.long_inv_freq != nullptr;
  const double* frequencies = is_long ? task.angles.long_inv_freq : task.angles.inv_freq;
  const double factor = is_long ? task.angles.long_factor : task.angles.factor;
  for (int j = threadIdx.x; j < half; j += blockDim.x) {
    double sine, cosine;
    sincos(static_cast<double>(row.position) * frequencies[j], &sine, &cosine);
    cosines[j] = static_cast<float>(factor * cosine);
    sines[j] = static_cast<float>(factor * sine);
  }
  __syncthreads();

  const Spot spot = find(task.places[row.place], row.position);
  T* page = static_cast<T*>(task.pages[spot.page]) + spot.slot * d;
  const float* base = task.qkv + blockIdx.x * task.layout.stride;
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  float* area = memory + 2 * half + warp * d;
  for (int64_t h = warp; h < s.heads + 2 * s.kv_heads; h += warps) {
    if (h < s.heads) {
      put_head(task, base + task.layout.q + h * task.layout.q_step, task.q_norm, cosines, sines, area,
               queries + (blockIdx.x * s.heads + h) * d);
    } else if (h < s.heads + s.kv_heads) {
      const int64_t head = h - s.heads;
      put_head(task, base + task.layout.k + head * task.layout.kv_step, task.k_norm, cosines, sines, area,
               page + before(s, task.layer, 0, head));
    } else {
      const int64_t head = h - s.heads - s.kv_heads;
      const float* v = base + task.layout.v + head * task.layout.kv_step;
      T* to = page + before(s, task.layer, 1, head);
      for (int j = threadIdx.x % kWarp; j < d; j += kWarp) put(v[j], to[j]);
    }
  }
}

}  // namespace

void embed(Stream stream, const Row* rows, const void* table, Type table_type, const float* positions,
           float scale, float* x, int64_t count, int64_t width) {
  if (count == 0) return;
  with_type(table_type, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    embed_kernel<T><<<static_cast<unsigned>(count), kBlock, 0, on(stream)>>>(
        rows, static_cast<const T*>(table), positions, scale, x, width);
  });
  check_launch("embed");
}

void store(Stream stream, const Row* rows, const Place* places, void* const* pages, const float* qkv,
           Qkv layout, Angles angles, const float* q_norm, const float* k_norm, bool plus_one, double eps,
           Shape shape, int64_t layer, void* queries, int64_t count) {
  if (count == 0) return;
  const StoreTask task{rows,
                       places,
                       pages,
                       qkv,
                       layout,
                       angles,
                       q_norm,
                       k_norm,
                       plus_one ? 1.0f : 0.0f,
                       static_cast<float>(eps),
                       shape,
                       layer};
  const int64_t shared = (2 * angles.half + kBlock / kWarp * shape.head_dim) * int64_t{sizeof(float)};
  with_type(shape.type, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    store_kernel<T><<<static_cast<unsigned>(count), kBlock, static_cast<size_t>(shared), on(stream)>>>(
        task, static_cast<T*>(queries));
  });
  check_launch("store");
}

}  // namespace rlt::cuda
