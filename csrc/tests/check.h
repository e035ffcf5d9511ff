// A small test harness: TEST registers a function, EXPECT* report file, line and values and carry on.
#pragma once

#include <exception>
#include <functional>
#include <sstream>
#include <string>

namespace rlt::test {

// Adds a test to those that run_all runs.
bool add(const char* name, void (*body)());
// Runs every test, prints a line for each, and returns how many failed.
int run_all();

// Notes a failure of the running test.
void fail(const char* file, int line, const std::string& what);

template <typename A, typename B>
void expect_equal(const A& got, const B& want, const char* text, const char* file, int line) {
  if (got == want) return;
  std::ostringstream s;
  s << text << ": got " << got << ", want " << want;
  fail(file, line, s.str());
}

// Written so that NaN fails.
inline void expect_at_most(double got, double limit, const std::string& text, const char* file, int line) {
  if (got <= limit) return;
  std::ostringstream s;
  s << text << ": got " << got << ", want at most " << limit;
  fail(file, line, s.str());
}

// body must throw, with part in the message.
void expect_throws(const std::function<void()>& body, const std::string& part, const char* text,
                   const char* file, int line);

}  // namespace rlt::test

#define TEST(name)                                                               \
  static void name();                                                            \
  static const bool name##_added [[maybe_unused]] = rlt::test::add(#name, name); \
  static void name()

#define EXPECT(...)                                                        \
  do {                                                                     \
    if (!(__VA_ARGS__)) rlt::test::fail(__FILE__, __LINE__, #__VA_ARGS__); \
  } while (false)
#define EXPECT_EQUAL(got, want) rlt::test::expect_equal(got, want, #got, __FILE__, __LINE__)
#define EXPECT_AT_MOST(got, limit, what) rlt::test::expect_at_most(got, limit, what, __FILE__, __LINE__)
#define EXPECT_THROWS(part, ...) \
  rlt::test::expect_throws([&] { (void)(__VA_ARGS__); }, part, #__VA_ARGS__, __FILE__, __LINE__)
