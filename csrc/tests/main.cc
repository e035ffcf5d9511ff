#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "check.h"
#include "composed.h"
#include "kernels/kernels.h"
#include "rltrain.h"

namespace rlt::test {
namespace {

struct Test {
  const char *name, *file;
  void (*body)();
};

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

int failures_of_running = 0;
std::vector<std::string> parts;  // of the names of the tests to run; all if empty

bool named(const std::string& test) {
  const auto fits = [&](const std::string& part) { return test.find(part) != std::string::npos; };
  return parts.empty() || std::any_of(parts.begin(), parts.end(), fits);
}

}  // namespace

bool add(const char* name, const char* file, void (*body)()) {
  tests().push_back({name, file, body});
  return true;
}

void fail(const char* file, int line, const std::string& what) {
  ++failures_of_running;
  std::printf("  %s:%d: %s\n", file, line, what.c_str());
}

void expect_throws(const std::function<void()>& body, const std::string& part, const char* text,
                   const char* file, int line) {
  try {
    body();
  } catch (const c10::Error& e) {
    const std::string message = e.what_without_backtrace();
    if (message.find(part) == std::string::npos) {
      fail(file, line, std::string(text) + ": threw \"" + message + "\", want \"" + part + "\"");
    }
    return;
  }
  fail(file, line, std::string(text) + ": threw nothing, want \"" + part + "\"");
}

int run_all(bool (*chosen)(const std::string& file, const std::string& test)) {
  int failed = 0, run = 0;
  for (const Test& test : tests()) {
    if (!named(test.name)) continue;
    if (chosen != nullptr && !chosen(test.file, test.name)) continue;
    ++run;
    failures_of_running = 0;
    const auto start = std::chrono::steady_clock::now();
    try {
      test.body();
    } catch (const c10::Error& e) {
      fail(test.name, 0, std::string("threw ") + e.what_without_backtrace());
    } catch (const std::exception& e) {
      fail(test.name, 0, std::string("threw ") + e.what());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%s %s (%.2f s)\n", failures_of_running == 0 ? "ok  " : "FAIL", test.name, took.count());
    std::fflush(stdout);
    failed += failures_of_running != 0;
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed;
}

}  // namespace rlt::test

// core_tests [SET [NAME...]] runs the tests with the kernels of an instruction set, by default the best that
// the processor supports. "core_tests composed" runs the tests of operators and models on the composed CUDA
// operators. "cuda_tests device" does so on a GPU and adds the tests of GPU kernels. Further
// arguments select tests by a part of their names.
int main(int argc, char** argv) {
  for (int i = 0; argc > 1 && i < rlt::kInstructionSets; ++i) {
    const rlt::InstructionSet& set = rlt::instruction_sets()[i];
    if (std::string(argv[1]) != set.name) continue;
    if (!set.runs) {
      std::printf("skipped: %s kernels\n", set.name);
      return 77;  // ctest counts this as skipped
    }
    rlt::use_kernels(set);
  }
  // Two threads, so that parallel regions do run in parallel.
  if (rlt_error* e = rlt_init(2); e != nullptr) {
    std::printf("rlt_init: %s\n", rlt_error_text(e));
    return 1;
  }
  if (argc > 2) rlt::test::parts.assign(argv + 2, argv + argc);
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode != "composed" && mode != "device") return rlt::test::run_all(nullptr) == 0 ? 0 : 1;
  int failed = 0;
  if (mode == "device") {
    if (!rlt::test::use_device()) {
      std::printf("skipped: no GPU\n");
      return 77;
    }
    failed = rlt::test::run_all(rlt::test::about_the_device);
  }
  rlt::test::use_composed_operators();
  return failed + rlt::test::run_all(rlt::test::about_operators) == 0 ? 0 : 1;
}
