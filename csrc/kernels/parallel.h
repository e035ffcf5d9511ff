// Work shared between threads, by the OpenMP runtime that libtorch uses too. Inside of a parallel region all
// of this runs on the calling thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include <omp.h>

namespace rlt {

// How many threads work at the same time, 1 unless set; inside of a parallel region 1.
int64_t thread_count();
void set_thread_count(int threads);
// The number of the calling thread in its region, from 0.
inline int64_t thread_number() { return omp_get_thread_num(); }

// Rows of such a length that a task should have, so that it is worth waking a thread.
inline int64_t grain(int64_t row_length) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_length));
}

// Calls f(first, last) on each thread's equal share of [begin, end), of least elements or more. Throws what
// one of the calls threw.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t least, const F& f) {
  if (begin >= end) return;
  const int64_t n = end - begin;
  const int64_t threads = std::min(thread_count(), (n + least - 1) / std::max<int64_t>(1, least));
  if (threads <= 1) return f(begin, end);
  std::exception_ptr error;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const int64_t share = (n + omp_get_num_threads() - 1) / omp_get_num_threads();
    const int64_t first = begin + thread_number() * share;
    try {
      if (first < end) f(first, std::min(end, first + share));
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// The same with work that threads take a step at a time: a fixed division waits for its slowest thread, and
// threads are seldom equally fast where something else runs on the machine. Calls f(begin, end, next) for the
// steps [begin, end) of [0, n); next is where the same thread's next step begins if all are equally fast, n
// or more where there is none. Fewer than 2·least are left to one thread.
template <class F>
void share(int64_t n, int64_t step, int64_t least, const F& f) {
  const int64_t threads = std::clamp<int64_t>(n / least, 1, thread_count());
  std::atomic<int64_t> taken{0};
  parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = taken.fetch_add(step); i < n; i = taken.fetch_add(step)) {
      f(i, std::min(n, i + step), i + threads * step);
    }
  });
}

}  // namespace rlt
