// A training step must not read tensor values on the host: on a GPU, each read waits for the device.
#include <ATen/record_function.h>

#include <mutex>

#include "check.h"
#include "step_fixture.h"

namespace {

using rlt::test::Shape;

// The operators that copied tensor values to the host, once for each call.
struct Reads {
  std::mutex mutex;
  std::string names;
};
Reads& reads() {
  static Reads all;
  return all;
}

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& f) {
  const std::string name = f.name();
  for (const char* reader :
       {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"}) {
    if (name != reader) continue;
    const std::lock_guard<std::mutex> lock(reads().mutex);
    reads().names += name + " ";
  }
  return nullptr;
}

TEST(a_step_of_training_looks_at_no_value) {
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  for (Shape& s : rlt::test::all_shapes()) {
    if (s.c.bidirectional != 0) continue;  // reads its sequence boundaries, which are on the host
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      rlt::test::Step step(s, type, at::kCPU);
      for (const bool entropy : {false, true}) {
        reads().names.clear();
        step.run(entropy, entropy);
        EXPECT_EQUAL(reads().names, "");
      }
    }
  }
  reads().names.clear();
  at::empty({1}, at::kFloat).fill_(1).item<float>();
  EXPECT_EQUAL(reads().names, "aten::_local_scalar_dense ");
  at::removeCallback(handle);
}

}  // namespace
