// Work that threads take a step at a time. A fixed division waits for its slowest thread, and threads are
// seldom equally fast where something else runs on the machine.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace rlt::engine {

// Calls f(begin, end, next) for the steps [begin, end) of [0, n); next is where the same thread's next step
// begins if all are equally fast, n or more where there is none. Fewer than 2·least are left to one thread.
template <class F>
void share(int64_t n, int64_t step, int64_t least, const F& f) {
  const int64_t threads = std::clamp<int64_t>(n / least, 1, at::get_num_threads());
  std::atomic<int64_t> taken{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = taken.fetch_add(step); i < n; i = taken.fetch_add(step)) {
      f(i, std::min(n, i + step), i + threads * step);
    }
  });
}

}  // namespace rlt::engine
