// A training step never waits for the GPU; libtorch throws if it would.
#include <c10/cuda/CUDAFunctions.h>

#include "check.h"
#include "step_fixture.h"

namespace {

struct NoWaiting {
  NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};

TEST(device_steps_do_not_wait) {
  for (rlt::test::Shape& s : rlt::test::all_shapes()) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      rlt::test::Step step(s, type, rlt::test::device());
      step.run(true, false);  // a first run, in which libraries create their handles
      try {
        const NoWaiting strict;
        for (const bool entropy : {false, true}) step.run(entropy, entropy);
      } catch (const c10::Error& e) {
        rlt::test::fail(__FILE__, __LINE__,
                        s.name + " of " + c10::toString(type) + ": " + e.what_without_backtrace());
      }
    }
  }
}

}  // namespace
