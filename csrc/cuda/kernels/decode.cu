// Attention over pages: work division, the kernel for fp32 and for heads that are not a multiple of 16 bytes,
// and the kernel that merges the parts of a row.
#include <algorithm>

#include "cuda/kernels/decode.cuh"

namespace rlt::cuda {
namespace {

constexpr int kWidest = 256;  // features of a head

template <typename T, int N>
__device__ Pack<T, N> piece(const T* from, bool there) {
  Pack<T, N> x = {};
  if (there) x = *reinterpret_cast<const Pack<T, N>*>(from);
  return x;
}

// Sums products over the features of a group of Lanes lanes; every lane gets the result.
template <int Lanes, typename T, int N, int Pieces>
__device__ float product_of(const Pack<T, N> (&a)[Pieces], const Pack<T, N> (&b)[Pieces]) {
  float sum = 0;
#pragma unroll
  for (int p = 0; p < Pieces; ++p) {
#pragma unroll
    for (int n = 0; n < N; ++n) sum += widen(a[p].v[n]) * widen(b[p].v[n]);
  }
#pragma unroll
  for (int step = Lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  return sum;
}

// A running softmax over some positions of a query head, for one lane's features.
template <typename T, int N, int Pieces>
struct Softmax {
  float peak = -INFINITY, total = 0, sums[Pieces][N] = {};

  // Adds positions; hidden ones have the score -INFINITY.
  template <int Steps>
  __device__ void add(const float (&scores)[Steps], const Pack<T, N> (&v)[Steps][Pieces]) {
    float top = peak;
#pragma unroll
    for (int s = 0; s < Steps; ++s) top = fmaxf(top, scores[s]);
    // So far all positions may be hidden.
    const float from = top == -INFINITY ? 0.0f : top, factor = exp2f(peak - from);
    peak = top;
    total *= factor;
#pragma unroll
    for (int p = 0; p < Pieces; ++p) {
#pragma unroll
      for (int n = 0; n < N; ++n) sums[p][n] *= factor;
    }
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
      const float weight = exp2f(scores[s] - from);
      total += weight;
#pragma unroll
      for (int p = 0; p < Pieces; ++p) {
#pragma unroll
        for (int n = 0; n < N; ++n) sums[p][n] += weight * widen(v[s][p].v[n]);
      }
    }
  }
};

// For heads of up to D features, read N at a time, and up to H query heads per block. Lanes lanes share a
// position; a lane's pieces of N features are Lanes · N apart. Each group of lanes keeps its own softmax.
template <typename T, int N, int D, int H>
__global__ void __launch_bounds__(kDecodeThreads) decode_kernel(DecodeTask task) {
  constexpr int Lanes = D / N < kWarp ? D / N : kWarp, Together = kWarp / Lanes, Pieces = D / (Lanes * N);
  constexpr int Steps = 4;  // positions that lanes read at once
  static_assert(kPage % (Steps * Together) == 0);
  __shared__ Softmaxes<kDecodeWarps * Together, H, D> all;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int share = lane / Lanes, begin = lane % Lanes * N;
  const int d = static_cast<int>(task.shape.head_dim);
  const DecodeBlock block(task, H);
  const Row row = task.rows[block.row];
  const Pages pages(task.places[row.place], row.position, task.window);
  const int64_t key_at = before(task.shape, task.layer, 0, block.kv_head),
                value_at = before(task.shape, task.layer, 1, block.kv_head);

  Pack<T, N> q[H][Pieces];
  Softmax<T, N, Pieces> softmax[H];
  const T* queries = static_cast<const T*>(task.queries) + (block.row * task.shape.heads + block.head) * d;
#pragma unroll
  for (int h = 0; h < H; ++h) {
#pragma unroll
    for (int p = 0; p < Pieces; ++p) {
      const int j = p * Lanes * N + begin;
      q[h][p] = piece<T, N>(queries + h * d + j, h < block.heads && j < d);
    }
  }

  const int stop = min(pages.count, (block.part + 1) * task.per);
  for (int i = block.part * task.per + warp; i < stop; i += kDecodeWarps) {
    int low, high;
    pages.bounds(i, &low, &high);
    const T* page = static_cast<const T*>(task.pages[pages.number(i)]);
    for (int first = share; first < kPage; first += Steps * Together) {
      Pack<T, N> k[Steps][Pieces], v[Steps][Pieces];
#pragma unroll
      for (int s = 0; s < Steps; ++s) {
        const int slot = first + s * Together;
#pragma unroll
        for (int p = 0; p < Pieces; ++p) {
          const int j = p * Lanes * N + begin;
          const bool there = slot >= low && slot < high && j < d;
          k[s][p] = piece<T, N>(page + key_at + slot * d + j, there);
          v[s][p] = piece<T, N>(page + value_at + slot * d + j, there);
        }
      }
#pragma unroll
      for (int h = 0; h < H; ++h) {
        float scores[Steps];
#pragma unroll
        for (int s = 0; s < Steps; ++s) {
          const int slot = first + s * Together;
          const float product = product_of<Lanes>(q[h], k[s]);
          scores[s] = slot >= low && slot < high ? score_of(task, product) : -INFINITY;
        }
        softmax[h].add(scores, v);
      }
    }
  }

  const int own = warp * Together + share;
#pragma unroll
  for (int h = 0; h < H; ++h) {
    if (begin == 0) all.peaks[own][h] = softmax[h].peak;
    if (begin == 0) all.totals[own][h] = softmax[h].total;
#pragma unroll
    for (int p = 0; p < Pieces; ++p) {
#pragma unroll
      for (int n = 0; n < N; ++n) all.sums[own][h][p * Lanes * N + begin + n] = softmax[h].sums[p][n];
    }
  }
  all.finish(task, block, static_cast<T*>(task.out));
}

// One block per row and head. A part without positions has weight 0.
template <typename T>
__global__ void join_kernel(DecodeTask task) {
  const int d = static_cast<int>(task.shape.head_dim);
  const int64_t first = int64_t{blockIdx.x} * task.parts;
  const float *softmaxes = task.softmaxes + 2 * first, *sums = task.sums + first * d;
  float top = -INFINITY, total = 0;
  for (int p = 0; p < task.parts; ++p) top = fmaxf(top, softmaxes[2 * p]);
  for (int p = 0; p < task.parts; ++p) total += exp2f(softmaxes[2 * p] - top) * softmaxes[2 * p + 1];
  for (int j = threadIdx.x; j < d; j += blockDim.x) {
    float sum = 0;
    for (int p = 0; p < task.parts; ++p) sum += exp2f(softmaxes[2 * p] - top) * sums[int64_t{p} * d + j];
    put(sum / total, static_cast<T*>(task.out)[blockIdx.x * d + j]);
  }
}

bool pieces_of_16_bytes(const Shape& s) { return s.head_dim % (s.type == Type::kF32 ? 4 : 8) == 0; }

// Query heads per block.
int64_t heads_of_block(const Shape& s) {
  if (!pieces_of_16_bytes(s)) return 1;
  if (s.type != Type::kF32) return kMmaHeads;
  return s.heads == s.kv_heads ? 1 : 4;
}

struct Division {
  int64_t head_blocks, parts, per;
};

// Enough parts to put two blocks on each multiprocessor of an H100, but at least one page per warp. A window
// never gives more parts than no window.
Division divide(const Shape& s, int64_t count, int64_t longest, int64_t window) {
  constexpr int64_t kBlocks = 264;
  const auto over = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t head_blocks = over(s.heads / s.kv_heads, heads_of_block(s)),
                blocks = count * s.kv_heads * head_blocks;
  // Prefix and tail may each end, and a window begin, within a page.
  int64_t pages = over(longest + 1, kPage) + 1;
  if (window > 0) pages = std::min(pages, window / kPage + 3);
  const int64_t parts = std::min(over(kBlocks, blocks), std::max<int64_t>(pages / kDecodeWarps, 1));
  return {head_blocks, parts, over(pages, parts)};
}

template <int D>
void start_f32(cudaStream_t stream, const DecodeTask& task, dim3 grid) {
  if (heads_of_block(task.shape) == 1) {
    decode_kernel<float, 4, D, 1><<<grid, kDecodeThreads, 0, stream>>>(task);
  } else {
    decode_kernel<float, 4, D, 4><<<grid, kDecodeThreads, 0, stream>>>(task);
  }
}

void start(cudaStream_t stream, const DecodeTask& task, dim3 grid) {
  const Shape& s = task.shape;
  if (!pieces_of_16_bytes(s)) {
    with_type(s.type, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      decode_kernel<T, 1, kWidest, 1><<<grid, kDecodeThreads, 0, stream>>>(task);
    });
  } else if (s.type != Type::kF32) {
    decode_mma(stream, task, grid);
  } else if (s.head_dim <= 64) {
    start_f32<64>(stream, task, grid);
  } else if (s.head_dim <= 128) {
    start_f32<128>(stream, task, grid);
  } else {
    start_f32<kWidest>(stream, task, grid);
  }
}

}  // namespace

void decode_attention(Stream stream, const Row* rows, const Place* places, void* const* pages,
                      const void* queries, double scale, int64_t window, double softcap, Shape shape,
                      int64_t layer, void* out, int64_t count, int64_t longest, void* room) {
  if (count == 0) return;
  if (shape.head_dim > kWidest) {
    throw std::runtime_error("heads of " + std::to_string(shape.head_dim) + " features: the most is " +
                             std::to_string(kWidest));
  }
  constexpr double kLog2E = 1.4426950408889634;
  Division division = divide(shape, count, longest, window);
  if (room == nullptr) division = {division.head_blocks, 1, division.parts * division.per};
  DecodeTask task{};
  task.rows = rows;
  task.places = places;
  task.pages = pages;
  task.queries = queries;
  task.out = out;
  task.inner = static_cast<float>(softcap == 0 ? scale * kLog2E : scale / softcap);
  task.outer = static_cast<float>(softcap * kLog2E);
  task.window = static_cast<int>(std::min<int64_t>(window, INT32_MAX));
  task.shape = shape;
  task.layer = layer;
  task.group = static_cast<int>(shape.heads / shape.kv_heads);
  task.head_blocks = static_cast<int>(division.head_blocks);
  task.parts = static_cast<int>(division.parts);
  task.per = static_cast<int>(division.per);
  task.sums = static_cast<float*>(room);
  task.softmaxes = task.sums + count * shape.heads * division.parts * shape.head_dim;
  start(on(stream), task,
        dim3(static_cast<unsigned>(count), static_cast<unsigned>(shape.kv_heads * division.head_blocks),
             static_cast<unsigned>(division.parts)));
  check_launch("decode_attention");
  if (division.parts == 1) return;
  with_type(shape.type, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    join_kernel<T><<<static_cast<unsigned>(count * shape.heads), kDecodeThreads, 0, on(stream)>>>(task);
  });
  check_launch("decode_attention");
}

int64_t decode_room(Shape shape, int64_t count, int64_t longest) {
  if (count == 0) return 0;
  const int64_t parts = divide(shape, count, longest, 0).parts;
  return parts == 1 ? 0 : count * shape.heads * parts * (shape.head_dim + 2) * int64_t{sizeof(float)};
}

}  // namespace rlt::cuda
