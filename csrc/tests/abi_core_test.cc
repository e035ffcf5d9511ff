// Tests of the C ABI: errors and invalid handles.
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "abi_support.h"

namespace {

using rlt::test::NoLeaks;
using rlt::test::text_of;

TEST(abi_versions) {
  const char* libtorch = nullptr;
  EXPECT_EQUAL(rlt_abi_version(&libtorch), RLT_ABI_VERSION);
  EXPECT_EQUAL(std::string(libtorch).substr(0, 2), "2.");
  EXPECT(std::strlen(rlt_cpu_capability()) > 0);
  EXPECT_ERROR("threads", rlt_init(0));
  EXPECT_ERROR("threads", rlt_init(-3));
  rlt_error_free(nullptr);
}

TEST(abi_kernel_sets_are_measured_and_chosen_by_name) {
  rlt_kernel_set sets[16], first;
  const int32_t n = rlt_kernel_sets(sets, 16, 1);
  EXPECT(n >= 4 && n <= 16);
  for (int32_t i = 0; i < n; ++i) {
    const std::string name = sets[i].name;
    const bool measured = sets[i].runs == 1 && name != "amx_loops" && name != "neon_loops";
    EXPECT(measured ? sets[i].f32 > 0 && sets[i].bf16 > 0 : sets[i].f32 == 0);
  }
  EXPECT_EQUAL(rlt_kernel_sets(&first, 1, 0), n);
  EXPECT(first.name == sets[0].name && first.f32 == 0);
  EXPECT_ERROR("it runs amx_loops, neon_loops, base", rlt_use_kernels("none"));
}

TEST(abi_handles_of_nothing_are_errors) {
  const NoLeaks check;
  float value = 0;
  rlt_tensor t = 0;
  EXPECT_ERROR("", rlt_tensor_read(0, RLT_F32, &value, 4));
  EXPECT_ERROR("", rlt_tensor_require_grad(0));
  EXPECT_ERROR("", rlt_tensor_backward(0));
  EXPECT_ERROR("", rlt_tensor_grad(0, &t));
  EXPECT_EQUAL(t, rlt_tensor{0});
  const rlt_tensor none[2] = {0, 0};
  rlt_tensor_free(none, 2);
  rlt_tensor_free(nullptr, 0);
}

TEST(abi_errors_are_one_line) {
  for (const std::string& text : {std::string("one\ntwo"), std::string("\n\none\ntwo"), std::string("one")}) {
    try {
      throw std::runtime_error(text);
    } catch (...) {
      EXPECT_EQUAL(text_of(rlt::current_exception()), "one");
    }
    try {
      TORCH_CHECK(false, text);
    } catch (...) {
      EXPECT_EQUAL(text_of(rlt::current_exception()), "one");
    }
  }
  try {
    throw std::bad_alloc();
  } catch (...) {
    EXPECT_EQUAL(text_of(rlt::current_exception()), "out of memory");
  }
  try {
    throw 7;
  } catch (...) {
    EXPECT_EQUAL(text_of(rlt::current_exception()), "unknown C++ exception");
  }
  try {
    throw std::runtime_error("");
  } catch (...) {
    EXPECT(!text_of(rlt::current_exception()).empty());
  }
}

}  // namespace
