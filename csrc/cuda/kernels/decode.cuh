// Shared by the kernels of attention over pages. A block processes query heads of one row that share a key
// head, over all pages or a part of them. Its warps take turns at the pages, each with a running softmax: the
// largest score, and the sums of weights and weighted values relative to it. The softmaxes of all warps and
// parts are merged in a fixed order.
#pragma once

#include <cmath>

#include "cuda/kernels/cache.cuh"

namespace rlt::cuda {

constexpr int kDecodeWarps = 4;
constexpr int kDecodeThreads = kDecodeWarps * kWarp;

struct DecodeTask {
  const Row* rows;
  const Place* places;
  void* const* pages;
  const void* queries;
  void* out;
  // Scores are base-2 exponents: inner · q·k, or outer · tanh(inner · q·k) if outer is not 0.
  float inner, outer;
  int window;
  Shape shape;
  int64_t layer;
  int group;        // query heads per key head
  int head_blocks;  // blocks per key head
  int parts, per;   // parts of a row, and pages per part
  // Only with several parts: [rows, heads, parts, head_dim] sums of values; [rows, heads, parts, 2] largest
  // score and sum of weights.
  float *sums, *softmaxes;
};

__device__ inline float score_of(const DecodeTask& task, float product) {
  const float x = product * task.inner;
  return task.outer == 0 ? x : task.outer * tanhf(x);
}

// The pages that a row attends to: first those of its prefix, then those of its tail.
struct Pages {
  int from, end;  // positions
  int cut;        // first position of the tail
  int prefix_page, tail_page, prefix_first, tail_first;
  int prefix_count, count;

  __device__ Pages(const Place& place, int position, int window) {
    constexpr int n = kPage;
    end = position + 1;
    from = window == 0 ? 0 : max(0, end - window);
    cut = place.prefix_length;
    prefix_page = place.prefix_page;
    tail_page = place.tail_page;
    const int prefix_end = min(end, cut);
    prefix_first = from / n;
    prefix_count = from < prefix_end ? (prefix_end + n - 1) / n - prefix_first : 0;
    tail_first = max(from - cut, 0) / n;
    count = prefix_count + (end > cut ? (end - cut + n - 1) / n - tail_first : 0);
  }

  // Index in the list of the i-th page.
  __device__ int number(int i) const {
    return i < prefix_count ? prefix_page + prefix_first + i : tail_page + tail_first + i - prefix_count;
  }
  // The row attends to slots [low, high) of the i-th page.
  __device__ void bounds(int i, int* low, int* high) const {
    const bool in_prefix = i < prefix_count;
    const int first =
        in_prefix ? (prefix_first + i) * int{kPage} : cut + (tail_first + i - prefix_count) * int{kPage};
    *low = max(from - first, 0);
    *high = min((in_prefix ? min(end, cut) : end) - first, int{kPage});
  }
};

// The work of a block.
struct DecodeBlock {
  int64_t row, kv_head, head;  // head: its first query head
  int heads;                   // number of query heads
  int part;

  __device__ DecodeBlock(const DecodeTask& task, int most) {
    const int share = blockIdx.y % task.head_blocks;
    row = blockIdx.x;
    kv_head = blockIdx.y / task.head_blocks;
    head = kv_head * task.group + share * most;
    heads = min(task.group - share * most, most);
    part = blockIdx.z;
  }
};

// The softmaxes of a block: for each of Heads heads, Streams softmaxes over disjoint positions.
template <int Streams, int Heads, int D>
struct Softmaxes {
  float peaks[Streams][Heads], totals[Streams][Heads], weights[Streams][Heads];
  float peak[Heads], total[Heads];
  float sums[Streams][Heads][D];

  // Merges them and writes the result, after all threads have written peaks, totals and sums.
  template <typename T>
  __device__ void finish(const DecodeTask& task, const DecodeBlock& block, T* out) {
    __syncthreads();
    if (threadIdx.x < Heads) {
      const int h = threadIdx.x;
      float top = -INFINITY, sum = 0;
      for (int s = 0; s < Streams; ++s) top = fmaxf(top, peaks[s][h]);
      for (int s = 0; s < Streams; ++s) {
        weights[s][h] = peaks[s][h] == -INFINITY ? 0.0f : exp2f(peaks[s][h] - top);
        sum += weights[s][h] * totals[s][h];
      }
      peak[h] = top;
      total[h] = sum;
    }
    __syncthreads();
    const int d = static_cast<int>(task.shape.head_dim);
    const int64_t first = block.row * task.shape.heads + block.head;
    for (int i = threadIdx.x; i < block.heads * d; i += kDecodeThreads) {
      const int h = i / d, j = i % d;
      float sum = 0;
      for (int s = 0; s < Streams; ++s) sum += weights[s][h] * sums[s][h][j];
      if (task.parts == 1) {
        put(sum / total[h], out[(first + h) * d + j]);
        continue;
      }
      const int64_t at = (first + h) * task.parts + block.part;
      task.sums[at * d + j] = sum;
      if (j > 0) continue;
      task.softmaxes[2 * at] = peak[h];
      task.softmaxes[2 * at + 1] = total[h];
    }
  }
};

// For two-byte types if heads are a multiple of 16 bytes; decode.cu has the rest.
constexpr int kMmaHeads = 8;
void decode_mma(cudaStream_t stream, const DecodeTask& task, dim3 grid);

}  // namespace rlt::cuda
