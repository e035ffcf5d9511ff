#include "kernels/parallel.h"

namespace rlt {
namespace {

std::atomic<int> wanted{1};

}  // namespace

int64_t thread_count() { return omp_in_parallel() != 0 ? 1 : wanted.load(std::memory_order_relaxed); }
void set_thread_count(int threads) { wanted.store(threads, std::memory_order_relaxed); }

}  // namespace rlt
