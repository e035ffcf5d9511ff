// Samples tokens as engine/cpu/sampler.cc does, one block per token. Weights are integers, in units of 2⁻⁴⁰
// of the most likely token's weight, so that no sum depends on thread order. Filters are conditions on a
// score and its id: the kernel scans all scores for the limits and keeps no lists.
#include <cfloat>

#include "cuda/kernels/row.cuh"

namespace rlt::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr float kUnit = 0x1p40f;          // weight of the most likely token
constexpr int64_t kMostTokens = 1 << 20;  // the sum of as many weights fits 64 bits
constexpr uint32_t kAll = 0xffffffff;     // mask of all lanes

// Philox4x32-10, as on the CPU.
__device__ uint64_t philox(uint64_t key, uint64_t high, uint32_t middle, uint32_t low) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = low, c1 = middle, c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return uint64_t{c1} << 32 | c0;
}

// Maps numbers (no NaN) to integers of the same order; 0 and -0 are equal.
__device__ uint32_t ordered(float x) {
  const uint32_t bits = x == 0 ? 0 : __float_as_uint(x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ uint64_t fixed(float weight) { return weight > 0 ? __float2ull_rn(weight * kUnit) : 0; }

// A row of scores.
struct Scores {
  const float* data;
  float softcap;  // 0: none

  __device__ float capped(float x) const { return softcap == 0 ? x : softcap * tanhf(x * (1 / softcap)); }
  __device__ float at(int i) const { return capped(data[i]); }

  // Calls body(score, i) for i = first, first + step, … below end. Reads several scores ahead.
  template <typename Body>
  __device__ void visit(int first, int end, int step, const Body& body) const {
    constexpr int kBatch = 8;
    for (int i = first; i < end; i += kBatch * step) {
      float x[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) x[k] = i + k * step < end ? data[i + k * step] : 0.0f;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (i + k * step < end) body(capped(x[k]), i + k * step);
      }
    }
  }
};

// Shared memory of a block. All threads must call the functions that use it; each leaves it free for the
// next.
struct Shared {
  uint64_t sums[kMostThreads / kWarp];
  uint32_t low[256], high[256];  // the two halves of 256 sums
  uint32_t bin;
  uint64_t need, mass;

  __device__ void add(uint32_t to, uint64_t mass) {
    const auto part = static_cast<uint32_t>(mass);
    const uint32_t old = atomicAdd(&low[to], part);
    const uint32_t rest = static_cast<uint32_t>(mass >> 32) + (old + part < old ? 1 : 0);
    if (rest > 0) atomicAdd(&high[to], rest);
  }
  __device__ uint64_t sum(uint32_t i) const { return uint64_t{high[i]} << 32 | low[i]; }
};

__device__ uint64_t block_max(Shared& s, uint64_t x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kAll, x, step);
    x = other > x ? other : x;
  }
  if (threadIdx.x % kWarp == 0) s.sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  for (int w = 0; w < blockDim.x / kWarp; ++w) x = s.sums[w] > x ? s.sums[w] : x;
  __syncthreads();
  return x;
}

// The first id with the largest score; -1 if there is none, or if a score is NaN or +∞.
__device__ int find_peak(Shared& s, const Scores& scores, int n) {
  uint64_t best = 0;
  bool bad = false;
  scores.visit(threadIdx.x, n, blockDim.x, [&](float x, int i) {
    bad = bad || !(x <= FLT_MAX);
    const uint64_t key = uint64_t{ordered(x)} << 32 | static_cast<uint32_t>(~i);
    best = key > best ? key : best;
  });
  if (__syncthreads_or(bad) != 0) return -1;
  const int id = static_cast<int>(~static_cast<uint32_t>(block_max(s, best)));
  return scores.at(id) >= -FLT_MAX ? id : -1;
}

// Each warp sums mass(score, id) over its part of [begin, end) into s.sums; callers must read these and pass
// a barrier before the next call. Returns the total.
template <typename Mass>
__device__ uint64_t split(Shared& s, const Scores& scores, int begin, int end, const Mass& mass) {
  const int warps = blockDim.x / kWarp, share = (end - begin + warps - 1) / warps;
  const int from = begin + static_cast<int>(threadIdx.x / kWarp) * share;
  uint64_t sum = 0;
  scores.visit(from + threadIdx.x % kWarp, min(from + share, end), kWarp,
               [&](float x, int i) { sum += mass(x, i); });
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  if (threadIdx.x % kWarp == 0) s.sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  uint64_t total = 0;
  for (int w = 0; w < warps; ++w) total += s.sums[w];
  return total;
}

// The first id at which the running sum of masses exceeds `left`. s.sums must hold the sums of all n, with a
// total above `left`.
template <typename Mass>
__device__ int invert(Shared& s, const Scores& scores, int n, uint64_t left, const Mass& mass) {
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  int begin = 0, end = n;
  for (;;) {
    const int share = (end - begin + warps - 1) / warps;
    int w = 0;
    while (w + 1 < warps && left >= s.sums[w]) left -= s.sums[w++];
    __syncthreads();
    begin += w * share;
    end = min(begin + share, end);
    if (end - begin <= kWarp) break;
    split(s, scores, begin, end, mass);
  }
  uint64_t sum = begin + lane < end ? mass(scores.at(begin + lane), begin + lane) : 0;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint64_t before = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += before;
  }
  return begin + __ffs(static_cast<int>(__ballot_sync(kAll, sum > left))) - 1;
}

struct Selected {
  uint32_t key;
  uint64_t need, mass;  // mass: of this key; need: how much of it is needed
};

// Scans keys from the largest down, and returns the one at which their total mass reaches need (1 ≤ need ≤
// total), eight bits at a time. each(f) calls f(key, mass) for this thread's keys.
template <typename Each>
__device__ Selected select(Shared& s, uint64_t need, const Each& each) {
  uint32_t key = 0, known = 0;  // bits of key that are known
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) s.low[i] = s.high[i] = 0;
    __syncthreads();
    each([&](uint32_t k, uint64_t mass) {
      if ((k & known) == key) s.add(k >> shift & 255, mass);
    });
    __syncthreads();
    if (threadIdx.x < kWarp) {  // a lane adds eight sums; lane 0 has the largest keys
      const int lane = threadIdx.x, top = 255 - 8 * lane;
      uint64_t own = 0;
      for (int i = 0; i < 8; ++i) own += s.sum(top - i);
      uint64_t before = own;
      for (int step = 1; step < kWarp; step *= 2) {
        const uint64_t other = __shfl_up_sync(kAll, before, step);
        if (lane >= step) before += other;
      }
      before -= own;
      if (before < need && need <= before + own) {
        int bin = top;
        while (before + s.sum(bin) < need) before += s.sum(bin--);
        s.bin = bin;
        s.need = need - before;
        s.mass = s.sum(bin);
      }
    }
    __syncthreads();
    key |= s.bin << shift;
    known |= 255U << shift;
    need = s.need;
  }
  return {key, need, s.mass};
}

// The tokens that pass the filters: scores of at least `score` and weights of at least `weight`; at exactly
// `weight`, ids of at least `id`.
struct Kept {
  float peak, inverse;  // weight = exp((score - peak) · inverse)
  double min_p;
  uint32_t score, weight;  // in the encoding of ordered; bits of a positive float
  int id;

  __device__ float weight_of(float x) const { return expf((x - peak) * inverse); }
  __device__ uint64_t operator()(float x, int i) const {
    if (ordered(x) < score) return 0;
    const float w = weight_of(x);
    const uint32_t bits = __float_as_uint(w);
    if (bits < weight || (bits == weight && i < id) || w < min_p) return 0;
    return fixed(w);
  }
};

// The k-th largest of n scores, n > k.
__device__ uint32_t find_top_k(Shared& s, const Scores& scores, int n, int k) {
  // The k-th largest of the threads' maxima is a lower bound of the result, which leaves few scores to count.
  uint32_t bound = 0;
  if (k <= blockDim.x && n >= blockDim.x) {
    uint32_t own = 0;
    scores.visit(threadIdx.x, n, blockDim.x, [&](float x, int) { own = max(own, ordered(x)); });
    bound = select(s, k, [&](const auto& f) { f(own, 1); }).key;
  }
  return select(s, k,
                [&](const auto& f) {
                  scores.visit(threadIdx.x, n, blockDim.x, [&](float x, int) {
                    if (const uint32_t key = ordered(x); key >= bound) f(key, 1);
                  });
                })
      .key;
}

// Keeps the smallest set of most likely tokens with a fraction top_p of the mass; among equals the larger
// ids.
__device__ void find_top_p(Shared& s, const Scores& scores, int n, double top_p, Kept* kept) {
  const Kept before = *kept;
  const uint64_t total = split(s, scores, 0, n, before);
  __syncthreads();
  if (total == 0) return;
  const auto share = static_cast<uint64_t>(ceil(top_p * static_cast<double>(total)));
  const uint64_t need = min(max(share, uint64_t{1}), total);
  // Skips weights too small to matter even if all n had them, and the scores that give such weights.
  const auto bound = static_cast<uint64_t>((1 - top_p) * static_cast<double>(total) / n);
  const auto lowest =
      static_cast<float>(before.peak + (log(bound / static_cast<double>(kUnit)) - 0.01) / before.inverse);
  const Selected last = select(s, need, [&](const auto& f) {
    scores.visit(threadIdx.x, n, blockDim.x, [&](float x, int i) {
      const uint64_t mass = x >= lowest ? before(x, i) : 0;
      if (mass > 0 && mass >= bound) f(__float_as_uint(before.weight_of(x)), mass);
    });
  });
  kept->weight = last.key;
  const uint64_t one = fixed(__uint_as_float(last.key)), wanted = (last.need + one - 1) / one;
  if (wanted * one >= last.mass) return;
  const Selected first = select(s, wanted, [&](const auto& f) {
    scores.visit(threadIdx.x, n, blockDim.x, [&](float x, int i) {
      if (before(x, i) > 0 && __float_as_uint(before.weight_of(x)) == last.key) f(i, 1);
    });
  });
  kept->id = static_cast<int>(first.key);
}

// Copies a row, capped, and applies the penalty to the ids in seen.
__device__ void penalise(const PickRow& pick, const int32_t* seen, const Scores& raw, int n, float* to) {
  raw.visit(threadIdx.x, n, blockDim.x, [&](float x, int i) { to[i] = x; });
  __syncthreads();
  const auto penalty = static_cast<float>(pick.repetition_penalty);
  for (int i = threadIdx.x; i < pick.seen_count; i += blockDim.x) {
    float& score = to[seen[pick.seen + i]];
    score = score < 0 ? score * penalty : score / penalty;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kMostThreads)
    sample_kernel(const PickRow* picks, const int32_t* seen, const float* logits, int64_t stride, int n,
                  float softcap, float* scratch, DrawRow* draws) {
  __shared__ Shared s;
  const PickRow pick = picks[blockIdx.x];
  const Scores raw{logits + pick.logits * stride, softcap};
  if (threadIdx.x == 0) draws[blockIdx.x] = {-2, 0, 0};
  int id = find_peak(s, raw, n);
  if (id < 0) return;
  const float raw_peak = raw.at(id);
  const Kept everything{raw_peak, 1, 0, 0, 0, 0};
  uint64_t total = split(s, raw, 0, n, everything);
  const double raw_log_sum = raw_peak + log(static_cast<double>(total) / kUnit);

  Scores scores = raw;
  const bool penalised = pick.repetition_penalty != 0 && pick.repetition_penalty != 1;
  if (penalised) {
    __syncthreads();
    float* own = scratch + int64_t{blockIdx.x} * n;
    penalise(pick, seen, raw, n, own);
    scores = {own, 0};
    id = find_peak(s, scores, n);
    if (id < 0) return;
  }
  float logprob = 0;
  if (pick.temperature != 0) {
    const bool top_k = pick.top_k > 0 && pick.top_k<n, top_p = pick.top_p> 0 && pick.top_p < 1;
    const float peak = scores.at(id);
    Kept kept{peak, fminf(static_cast<float>(1 / pick.temperature), FLT_MAX), 0, 0, 0, 0};
    if (penalised || top_k || top_p || pick.min_p > 0 || pick.temperature != 1) {
      __syncthreads();
      if (top_k) kept.score = find_top_k(s, scores, n, static_cast<int>(pick.top_k));
      if (top_p) find_top_p(s, scores, n, pick.top_p, &kept);
      kept.min_p = pick.min_p;
      total = split(s, scores, 0, n, kept);
    }
    const double u =
        static_cast<double>(philox(pick.seed, pick.stream, pick.sample, pick.position) >> 11) * 0x1p-53;
    const auto left = static_cast<uint64_t>(u * static_cast<double>(total));
    id = invert(s, scores, n, min(left, max(total, uint64_t{1}) - 1), kept);
    logprob = static_cast<float>((static_cast<double>(scores.at(id)) - peak) / pick.temperature -
                                 log(static_cast<double>(total) / kUnit));
  }
  if (threadIdx.x == 0) {
    draws[blockIdx.x] = {id, logprob, static_cast<float>(raw.at(id) - raw_log_sum)};
  }
}

}  // namespace

void sample(Stream stream, const PickRow* picks, const int32_t* seen, const float* logits, int64_t stride,
            int64_t vocab, double softcap, float* scratch, DrawRow* draws, int64_t count) {
  if (count == 0) return;
  if (vocab > kMostTokens)
    throw std::runtime_error("a vocabulary of " + std::to_string(vocab) + " tokens: the most is " +
                             std::to_string(kMostTokens));
  const unsigned threads = vocab > 8 * kBlock ? kMostThreads : kBlock;
  sample_kernel<<<static_cast<unsigned>(count), threads, 0, on(stream)>>>(
      picks, seen, logits, stride, static_cast<int>(vocab), static_cast<float>(softcap), scratch, draws);
  check_launch("sample");
}

}  // namespace rlt::cuda
