// Helpers for the tests of the C ABI.
#pragma once

#include <string>
#include <vector>

#include "abi/abi.h"
#include "check.h"

namespace rlt::test {

// Returns an error's text and frees the error; "" means success. Every error must be one non-empty line.
inline std::string text_of(rlt_error* e) {
  if (e == nullptr) return "";
  std::string text = rlt_error_text(e);
  rlt_error_free(e);
  EXPECT(!text.empty() && text.find('\n') == std::string::npos);
  return text.empty() ? "empty error" : text;
}

inline void expect_error(rlt_error* e, const std::string& part, const char* what, const char* file,
                         int line) {
  const std::string text = text_of(e);
  if (text.empty() || text.find(part) == std::string::npos) {
    fail(file, line, std::string(what) + ": got \"" + text + "\", want \"" + part + "\"");
  }
}

// Fails if a test ends with more live handles than it started with.
class NoLeaks {
 public:
  ~NoLeaks() { EXPECT_EQUAL(rlt_live(), start_); }

 private:
  int64_t start_ = rlt_live();
};

// Frees its handles when it goes out of scope.
class Handles {
 public:
  ~Handles() { rlt_tensor_free(all_.data(), static_cast<int32_t>(all_.size())); }
  rlt_tensor keep(rlt_tensor t) {
    all_.push_back(t);
    return t;
  }
  rlt_tensor give(const at::Tensor& t) { return keep(rlt::give(t)); }

 private:
  std::vector<rlt_tensor> all_;
};

}  // namespace rlt::test

#define EXPECT_ERROR(part, ...) rlt::test::expect_error(__VA_ARGS__, part, #__VA_ARGS__, __FILE__, __LINE__)
#define EXPECT_OK(...) EXPECT_EQUAL(rlt::test::text_of(__VA_ARGS__), "")
