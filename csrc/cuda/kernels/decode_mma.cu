// Attention over pages for two-byte types, on tensor cores. Up to eight query heads are processed together,
// so that keys and values, which dominate memory traffic, are read once for all of them. The order of
// elements in a sum is free, so each lane reads 16 bytes directly in the layout of the products. Lanes
// exchange only softmax weights.
#include "cuda/kernels/decode.cuh"
#include "cuda/kernels/mma.cuh"

namespace rlt::cuda {
namespace {

__device__ uint4 piece(const void* from, bool there) {
  return there ? __ldg(static_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
}

// What lane (r, c) of mma.cuh reads of a page. Keys: elements 8c.. of each 32, at positions r and r + 8.
// Values: elements 8r.. of each 64, at positions 2c, 2c + 1, 2c + 8, 2c + 9. Hidden and missing positions
// read as 0.
template <typename T, int D>
struct Fragments {
  uint4 k[D / 32][2], v[D / 64][4];

  __device__ void read(const T* keys, const T* values, int r, int c, int d, int low, int high) {
#pragma unroll
    for (int b = 0; b < D / 32; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int slot = r + 8 * i, j = 32 * b + 8 * c;
        k[b][i] = piece(keys + slot * d + j, slot >= low && slot < high && j < d);
      }
    }
#pragma unroll
    for (int b = 0; b < D / 64; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int slot = 2 * c + i % 2 + i / 2 * 8, j = 64 * b + 8 * r;
        v[b][i] = piece(values + slot * d + j, slot >= low && slot < high && j < d);
      }
    }
  }
};

// A warp's running softmax for a lane's two heads, over the positions whose scores this lane has.
struct Two {
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};

  // Replaces the scores of a page (two positions by two heads) by weights; -INFINITY becomes 0. factor
  // rescales earlier weights. The maximum is over all lanes. It is finite, because every page has a visible
  // position.
  __device__ void add(float (&s)[4], float (&factor)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = fmaxf(s[h], s[h + 2]);
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
      top = fmaxf(top, peak[h]);
      factor[h] = exp2f(peak[h] - top);
      peak[h] = top;
      s[h] = exp2f(s[h] - top);
      s[h + 2] = exp2f(s[h + 2] - top);
      total[h] = total[h] * factor[h] + s[h] + s[h + 2];
    }
  }
};

// Resident blocks per multiprocessor to limit registers for.
constexpr int resident(int d) { return d == 64 ? 5 : d == 128 ? 3 : 2; }

template <typename T, int D>
__global__ void __launch_bounds__(kDecodeThreads, resident(D)) decode_mma_kernel(DecodeTask task) {
  __shared__ Softmaxes<kDecodeWarps, kMmaHeads, D> all;
  const T* const type = nullptr;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, r = lane / 4, c = lane % 4;
  const int d = static_cast<int>(task.shape.head_dim);
  const DecodeBlock block(task, kMmaHeads);
  const Row row = task.rows[block.row];
  const Pages pages(task.places[row.place], row.position, task.window);
  const int64_t key_at = before(task.shape, task.layer, 0, block.kv_head),
                value_at = before(task.shape, task.layer, 1, block.kv_head);

  // The columns of the products are heads: this lane loads head r, and gets scores of heads 2c and 2c + 1.
  uint4 q[D / 32];
  const T* queries =
      static_cast<const T*>(task.queries) + (block.row * task.shape.heads + block.head + r) * d;
#pragma unroll
  for (int b = 0; b < D / 32; ++b) {
    q[b] = piece(queries + 32 * b + 8 * c, r < block.heads && 32 * b + 8 * c < d);
  }

  // sums[b][t]: value elements 64b + 8r + 2t and the next one, each for heads 2c and 2c + 1.
  float sums[D / 64][4][4] = {};
  Two softmax;
  const int stop = min(pages.count, (block.part + 1) * task.per);
  for (int i = block.part * task.per + warp; i < stop; i += kDecodeWarps) {
    int low, high;
    pages.bounds(i, &low, &high);
    const T* page = static_cast<const T*>(task.pages[pages.number(i)]);
    Fragments<T, D> f;
    f.read(page + key_at, page + value_at, r, c, d, low, high);

    float s[4] = {}, factor[2];  // s: position r, then r + 8, each for heads 2c and 2c + 1
#pragma unroll
    for (int b = 0; b < D / 32; ++b) {
      multiply(s, f.k[b][0].x, f.k[b][1].x, f.k[b][0].y, f.k[b][1].y, q[b].x, q[b].y, type);
      multiply(s, f.k[b][0].z, f.k[b][1].z, f.k[b][0].w, f.k[b][1].w, q[b].z, q[b].w, type);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int slot = r + j / 2 * 8;
      s[j] = slot >= low && slot < high ? score_of(task, s[j]) : -INFINITY;
    }
    softmax.add(s, factor);
    const uint32_t w0 = transpose(pack(s[0], s[1], type)), w1 = transpose(pack(s[2], s[3], type));
#pragma unroll
    for (int b = 0; b < D / 64; ++b) {
      const auto add = [&](float(&sum)[4], uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] *= factor[j % 2];
        multiply(sum, low_halves(v0, v1), high_halves(v0, v1), low_halves(v2, v3), high_halves(v2, v3), w0,
                 w1, type);
      };
      const uint4(&v)[4] = f.v[b];
      add(sums[b][0], v[0].x, v[1].x, v[2].x, v[3].x);
      add(sums[b][1], v[0].y, v[1].y, v[2].y, v[3].y);
      add(sums[b][2], v[0].z, v[1].z, v[2].z, v[3].z);
      add(sums[b][3], v[0].w, v[1].w, v[2].w, v[3].w);
    }
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = softmax.total[h];
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) total += __shfl_xor_sync(0xffffffff, total, step);
    if (r == 0) all.peaks[warp][2 * c + h] = softmax.peak[h];
    if (r == 0) all.totals[warp][2 * c + h] = total;
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
      float* to = all.sums[warp][2 * c + h] + t / 4 * 64 + 8 * r + t % 4 * 2;
      to[0] = sums[t / 4][t % 4][h];
      to[1] = sums[t / 4][t % 4][h + 2];
    }
  }
  all.finish(task, block, static_cast<T*>(task.out));
}

template <typename T>
void start(cudaStream_t stream, const DecodeTask& task, dim3 grid) {
  if (task.shape.head_dim <= 64) {
    decode_mma_kernel<T, 64><<<grid, kDecodeThreads, 0, stream>>>(task);
  } else if (task.shape.head_dim <= 128) {
    decode_mma_kernel<T, 128><<<grid, kDecodeThreads, 0, stream>>>(task);
  } else {
    decode_mma_kernel<T, 256><<<grid, kDecodeThreads, 0, stream>>>(task);
  }
}

}  // namespace

void decode_mma(cudaStream_t stream, const DecodeTask& task, dim3 grid) {
  if (task.shape.type == Type::kBF16) {
    start<__nv_bfloat16>(stream, task, grid);
  } else {
    start<__half>(stream, task, grid);
  }
}

}  // namespace rlt::cuda
