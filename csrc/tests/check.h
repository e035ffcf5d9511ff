// A small test harness: TEST registers a function; EXPECT* report file, line and values, and continue.
#pragma once

#include <exception>
#include <functional>
#include <sstream>
#include <string>

namespace rlt::test {

// Registers a test for run_all.
bool add(const char* name, const char* file, void (*body)());
// Runs the chosen tests (all if null), prints a line for each, and returns the number of failures.
int run_all(bool (*chosen)(const std::string& file, const std::string& test));

// Records a failure of the running test.
void fail(const char* file, int line, const std::string& what);

template <typename A, typename B>
void expect_equal(const A& got, const B& want, const char* text, const char* file, int line) {
  if (got == want) return;
  std::ostringstream s;
  s << text << ": got " << got << ", want " << want;
  fail(file, line, s.str());
}

// Factor on the limits of EXPECT_AT_MOST.
inline double tolerance = 1;
// Whether the CPU kernels run, which give the same bits for a row in any batch.
inline bool exact() { return tolerance == 1; }

// The comparison also fails for NaN.
inline void expect_at_most(double got, double limit, const std::string& text, const char* file, int line) {
  if (got <= limit * tolerance) return;
  std::ostringstream s;
  s << text << ": got " << got << ", want at most " << limit * tolerance;
  fail(file, line, s.str());
}

// Fails unless body throws an error whose message contains part.
void expect_throws(const std::function<void()>& body, const std::string& part, const char* text,
                   const char* file, int line);

}  // namespace rlt::test

#define TEST(name)                                                                         \
  static void name();                                                                      \
  static const bool name##_added [[maybe_unused]] = rlt::test::add(#name, __FILE__, name); \
  static void name()

#define EXPECT(...)                                                        \
  do {                                                                     \
    if (!(__VA_ARGS__)) rlt::test::fail(__FILE__, __LINE__, #__VA_ARGS__); \
  } while (false)
#define EXPECT_EQUAL(got, want) rlt::test::expect_equal(got, want, #got, __FILE__, __LINE__)
#define EXPECT_AT_MOST(got, limit, what) rlt::test::expect_at_most(got, limit, what, __FILE__, __LINE__)
#define EXPECT_THROWS(part, ...) \
  rlt::test::expect_throws([&] { (void)(__VA_ARGS__); }, part, #__VA_ARGS__, __FILE__, __LINE__)
