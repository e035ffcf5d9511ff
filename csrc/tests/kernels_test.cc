// The kernels of each instruction set that this processor supports, against sums in double.
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/tiles.h"
#include "rltrain.h"

namespace {

using rlt::Kernels;
using rlt::kPanel;
using rlt::Store;
using rlt::Tile;

using Set = rlt::InstructionSet;

std::vector<Set> sets() {
  std::vector<Set> found;
  for (int i = 0; i < rlt::kInstructionSets; ++i) {
    const Set& set = rlt::instruction_sets()[i];
    if (set.runs) {
      found.push_back(set);
    } else {
      std::printf("skipped: %s kernels\n", set.name);
    }
  }
  return found;
}

std::vector<float> normal(size_t n, uint64_t seed, double spread = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> draw(0, spread);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(draw(engine));
  return x;
}

// kPairs: rows and panels of bfloat16.
enum Type { kF32, kBF16, kF16, kPairs };

// Rounds x to the type; returns its bits and its value.
std::pair<uint16_t, float> rounded(float x, Type type) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  uint16_t half;
  if (type != kF16) {
    half = static_cast<uint16_t>(bits >> 16);
    bits = static_cast<uint32_t>(half) << 16;
  } else {  // truncates; normal numbers only
    const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xff) - 112;
    if (exponent <= 0) return {0, 0.0f};
    half = static_cast<uint16_t>((bits >> 16 & 0x8000) | static_cast<uint32_t>(exponent) << 10 |
                                 (bits >> 13 & 0x3ff));
    bits &= 0xffffe000U;
  }
  std::memcpy(&x, &bits, sizeof x);
  return {half, x};
}

const rlt::Product& product_of(const Set& set, Type type) {
  const Kernels& k = *set.kernels;
  return type == kF32    ? k.multiply_f32
         : type == kBF16 ? k.multiply_bf16
         : type == kF16  ? k.multiply_f16
                         : k.multiply_pairs;
}

void check_tile(const Set& set, Type type, int rows, int64_t panels, int64_t k, Store store, bool with_bias) {
  const bool of_two = type == kBF16 || type == kPairs;
  const int64_t n = panels * kPanel, padded = of_two ? 2 * rlt::words_of(k) : k;
  std::vector<float> a = normal(static_cast<size_t>(rows * k), 1);
  const std::vector<float> start = normal(static_cast<size_t>(rows * n), 2),
                           bias = normal(static_cast<size_t>(n), 3);
  std::vector<uint16_t> halves(static_cast<size_t>(rows * padded));
  for (int64_t i = 0; type == kPairs && i < rows * k; ++i) {
    float& value = a[static_cast<size_t>(i)];
    const auto [half, wide] = rounded(value, type);
    value = wide;
    halves[static_cast<size_t>(i / k * padded + i % k)] = half;
  }
  std::vector<float> w = normal(static_cast<size_t>(k * n), 4), c = start;
  std::vector<uint16_t> packed16(static_cast<size_t>(padded * n));
  std::vector<float> packed32(static_cast<size_t>(k * n));
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t p = j / kPanel, lane = j % kPanel;
      float& value = w[static_cast<size_t>(i * n + j)];
      packed32[static_cast<size_t>((p * k + i) * kPanel + lane)] = value;
      if (type == kF32) continue;
      const auto [half, wide] = rounded(value, type);
      value = wide;
      const int64_t at =
          of_two ? p * padded * kPanel + i / 2 * 2 * kPanel + lane * 2 + i % 2 : (p * k + i) * kPanel + lane;
      packed16[static_cast<size_t>(at)] = half;
    }
  }
  Tile t;
  t.rows = rows;
  t.a = type == kPairs ? reinterpret_cast<const float*>(halves.data()) : a.data();
  t.a_stride = type == kPairs ? padded / 2 : k;
  t.c = c.data();
  t.c_stride = n;
  t.b = type == kF32 ? static_cast<const void*>(packed32.data()) : packed16.data();
  t.k = type == kPairs ? padded / 2 : k;
  t.panels = panels;
  t.panel_stride = (type == kPairs ? padded / 2 : padded) * kPanel;
  if (with_bias) t.bias = bias.data();
  t.store = store;
  product_of(set, type)(t);
  double worst = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      double want = store == Store::kSet ? 0 : start[static_cast<size_t>(r * n + j)];
      if (with_bias) want += bias[static_cast<size_t>(j)];
      for (int64_t i = 0; i < k; ++i) {
        want += static_cast<double>(a[static_cast<size_t>(r * k + i)]) * w[static_cast<size_t>(i * n + j)];
      }
      worst = std::max(worst, std::abs(want - c[static_cast<size_t>(r * n + j)]));
    }
  }
  EXPECT_AT_MOST(worst, 3e-5,
                 std::string(set.name) + ", type " + std::to_string(type) + ", rows " + std::to_string(rows));
}

TEST(kernels_multiply_tiles) {
  for (const Set& set : sets()) {
    for (const Type type : {kF32, kBF16, kF16, kPairs}) {
      for (int rows = 1; rows <= product_of(set, type).rows; ++rows) {
        for (const int64_t panels : {1, 2, 9}) {
          check_tile(set, type, rows, panels, 37, Store::kSet, true);
          check_tile(set, type, rows, panels, 40, Store::kAdd, true);
          check_tile(set, type, rows, panels, 1, Store::kContinue, false);
        }
      }
    }
  }
}

// Round to nearest, ties to even.
TEST(kernels_round_to_bfloat16) {
  const float infinity = std::numeric_limits<float>::infinity();
  const struct {
    float x;
    uint16_t want;
  } cases[] = {{0.0f, 0},
               {-0.0f, 0x8000},
               {1.0f, 0x3f80},
               {1.00390625f, 0x3f80},  // half way to 1.0078125
               {1.01171875f, 0x3f82},  // half way from there to 1.015625
               {1.00390637f, 0x3f81},  // a little above half way
               {-1.00390637f, 0xbf81},
               {3.4028235e38f, 0x7f80},  // nearer to 2^128 than to the largest bfloat16
               {infinity, 0x7f80},
               {-infinity, 0xff80},
               {1e-40f, 0x0001}};
  for (const Set& set : sets()) {
    for (const auto& c : cases) {
      uint16_t got[3] = {};
      const float x[3] = {c.x, c.x, c.x};
      set.kernels->round_bf16(x, got, 3);
      EXPECT_EQUAL(got[0], c.want);
      EXPECT_EQUAL(got[2], c.want);
    }
    // A NaN stays a NaN, whichever bits are set.
    for (const uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU}) {
      float nan;
      uint16_t got;
      std::memcpy(&nan, &bits, sizeof nan);
      set.kernels->round_bf16(&nan, &got, 1);
      EXPECT((got & 0x7f80) == 0x7f80 && (got & 0x7f) != 0 && (got >> 15) == (bits >> 31));
    }
  }
}

// The peak of a row that contains a NaN is NaN, so that the row is never sampled from.
TEST(kernels_keep_nan_as_the_peak) {
  for (const Set& set : sets()) {
    for (const size_t n : {1U, 2U, 7U, 16U, 63U, 64U, 65U, 200U, 256U, 700U}) {
      for (size_t at = 0; at < n; ++at) {
        std::vector<float> x = normal(n, 11);
        x[at] = std::numeric_limits<float>::quiet_NaN();
        EXPECT(std::isnan(set.kernels->peak(x.data(), static_cast<int64_t>(n))));
      }
    }
  }
}

// A row's result does not depend on the other rows or the number of panels.
TEST(kernels_multiply_the_same_bits_in_any_tile) {
  constexpr int64_t k = 53, panels = 9;
  const std::vector<float> a = normal(6 * k, 1), b = normal(k * panels * kPanel, 2);
  for (const Set& set : sets()) {
    std::vector<float> alone(6 * panels * kPanel), together = alone;
    Tile t;
    t.b = b.data();
    t.k = k;
    t.panel_stride = k * kPanel;
    for (int r = 0; r < 6; ++r) {
      for (int64_t p = 0; p < panels; ++p) {
        t.rows = 1;
        t.panels = 1;
        t.a = a.data() + r * k;
        t.b = b.data() + p * k * kPanel;
        t.c = alone.data() + (r * panels + p) * kPanel;
        set.kernels->multiply_f32(t);
      }
    }
    t.b = b.data();
    t.panels = panels;
    t.a = a.data();
    t.a_stride = k;
    t.c = together.data();
    t.c_stride = panels * kPanel;
    for (t.rows = 1; t.rows <= 6; ++t.rows) set.kernels->multiply_f32(t);
    EXPECT(alone == together);
  }
}

// Random bits; in three of four cases limited to numbers of ordinary size.
uint16_t any_half(std::mt19937_64& engine) {
  const uint16_t bits = static_cast<uint16_t>(engine());
  if (engine() % 4 == 0) return bits;
  return static_cast<uint16_t>((bits & 0x807f) | (0x70 + bits / 128 % 32) << 7);
}

// Products by instructions that loops emulate, those of AMX and those of arm64, equal the loops bit for bit,
// and a row's result does not depend on other rows or panels.
TEST(kernels_of_instructions_equal_their_loops) {
  std::mt19937_64 engine(7);
  for (const Set& set : sets()) {
    const std::string name = set.name, family = name.substr(0, name.find('_'));
    if ((family != "amx" && family != "neon") || !set.kernels->multiply_pairs) continue;
    const Kernels* loops = nullptr;
    for (const Set& other : sets()) {
      if (other.name == family + "_loops") loops = other.kernels;
    }
    EXPECT(loops != nullptr);
    if (loops == nullptr) continue;
    for (const int rows : {1, 2, 3, 6, 15, 16, 17, 31, 32}) {
      if (rows > set.kernels->multiply_pairs.rows) continue;
      for (const int64_t panels : {1, 2, 3, 4, 7}) {
        const int64_t k = rlt::kStepWords * static_cast<int64_t>(1 + engine() % 3), n = panels * kPanel;
        std::vector<uint16_t> a(static_cast<size_t>(2 * rows * k)), b(static_cast<size_t>(2 * k * n));
        for (uint16_t& x : a) x = any_half(engine);
        for (uint16_t& x : b) x = any_half(engine);
        std::vector<float> start = normal(static_cast<size_t>(rows * n), engine()),
                           bias = normal(static_cast<size_t>(n), engine());
        for (size_t i = 0; i < start.size(); i += 5) start[i] *= 1e-39f;
        for (const Store store : {Store::kSet, Store::kAdd, Store::kContinue}) {
          Tile t;
          t.rows = rows;
          t.a = reinterpret_cast<const float*>(a.data());
          t.a_stride = t.k = k;
          t.b = b.data();
          t.panels = panels;
          t.panel_stride = k * kPanel;
          t.c_stride = n;
          t.store = store;
          if (store == Store::kSet) t.bias = bias.data();
          std::vector<float> want = start, got = start, alone = start;
          t.c = want.data();
          loops->multiply_pairs(t);
          t.c = got.data();
          set.kernels->multiply_pairs(t);
          t.rows = 1;
          t.panels = 1;
          for (int r = 0; r < rows; ++r) {
            for (int64_t p = 0; p < panels; ++p) {
              t.a = reinterpret_cast<const float*>(a.data()) + r * k;
              t.b = b.data() + 2 * p * k * kPanel;
              t.c = alone.data() + r * n + p * kPanel;
              if (t.bias != nullptr) t.bias = bias.data() + p * kPanel;
              set.kernels->multiply_pairs(t);
            }
          }
          for (size_t i = 0; i < want.size(); ++i) {
            if (std::isnan(want[i]) && std::isnan(got[i]) && std::isnan(alone[i])) continue;
            EXPECT(std::memcmp(&got[i], &want[i], 4) == 0 && std::memcmp(&alone[i], &want[i], 4) == 0);
          }
        }
      }
    }
  }
}

// Infinities, NaN and subnormal numbers give what IEEE arithmetic says. A column's special numbers stay in
// their column, and a row's in their row.
TEST(kernels_multiply_special_numbers) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kSmall = 1e-41f;  // subnormal
  constexpr int64_t k = 9, n = 2 * kPanel;
  for (const Set& set : sets()) {
    for (const Type type : {kF32, kBF16, kF16}) {
      for (int rows = 1; rows <= product_of(set, type).rows; ++rows) {
        const auto halves = [&](float x) {  // as the type stores it
          if (x == kInf) return static_cast<uint16_t>(type == kBF16 ? 0x7f80 : 0x7c00);
          if (x != x) return static_cast<uint16_t>(type == kBF16 ? 0x7fc0 : 0x7e00);
          if (x == kSmall) return uint16_t{3};
          return rounded(x, type).first;
        };
        // Three times the smallest positive number of the type.
        const float small = type == kF32 ? kSmall : type == kBF16 ? 3 * 0x1p-133f : 3 * 0x1p-24f;
        std::vector<float> a(static_cast<size_t>(rows * k), 1), b(k * n, 0.5f);
        b[2 * n + 3] = kInf, b[3 * n + 20] = std::nanf("");
        for (int64_t i = 0; i < k; ++i) b[static_cast<size_t>(i * n + 7)] = kSmall;
        a[0] = rows > 1 ? -kInf : 1;  // only the first row
        std::vector<float> packed32(k * n), c(static_cast<size_t>(rows * n));
        std::vector<uint16_t> packed16((k + 1) * n);
        const int64_t padded = type == kBF16 ? k + 1 : k;
        for (int64_t i = 0; i < k; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const int64_t p = j / kPanel, lane = j % kPanel;
            const float x = b[static_cast<size_t>(i * n + j)];
            packed32[static_cast<size_t>((p * k + i) * kPanel + lane)] = x;
            packed16[static_cast<size_t>(type == kBF16
                                             ? p * padded * kPanel + i / 2 * 2 * kPanel + lane * 2 + i % 2
                                             : (p * k + i) * kPanel + lane)] = halves(x);
          }
        }
        Tile t;
        t.rows = rows;
        t.a = a.data();
        t.a_stride = k;
        t.c = c.data();
        t.c_stride = n;
        t.b = type == kF32 ? static_cast<const void*>(packed32.data()) : packed16.data();
        t.k = k;
        t.panels = 2;
        t.panel_stride = padded * kPanel;
        product_of(set, type)(t);
        for (int r = 0; r < rows; ++r) {
          const float* row = c.data() + r * n;
          const bool infinite = a[static_cast<size_t>(r * k)] == -kInf;
          EXPECT(std::isnan(row[20]));
          for (const int64_t j : {0, 19, 31}) EXPECT(infinite ? row[j] == -kInf : row[j] == 4.5f);
          EXPECT(infinite ? std::isnan(row[3]) : row[3] == kInf);
          EXPECT(infinite ? row[7] == -kInf : row[7] == 9 * small);
        }
      }
    }
  }
}

TEST(kernels_refuse_tiles_of_no_or_too_many_rows) {
  const float a[1] = {1}, b[kPanel] = {};
  for (const Set& set : sets()) {
    for (const Type type : {kF32, kBF16, kF16, kPairs}) {
      const rlt::Product& multiply = product_of(set, type);
      if (!multiply) continue;
      for (const int rows : {-1, 0, multiply.rows + 1}) {
        float c[kPanel] = {7};
        Tile t;
        t.rows = rows;
        t.a = a;
        t.c = c;
        t.b = b;
        t.k = t.panels = 1;
        std::string said;
        try {
          multiply(t);
        } catch (const std::logic_error& e) {
          said = e.what();
        }
        EXPECT_EQUAL(
            said, "a tile has 1 to " + std::to_string(multiply.rows) + " rows, not " + std::to_string(rows));
        EXPECT_EQUAL(c[0], 7.0f);
      }
    }
  }
}

double activation(int32_t kind, double x) {
  switch (kind) {
    case RLT_ACT_SILU:
      return x / (1 + std::exp(-x));
    case RLT_ACT_GELU:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case RLT_ACT_GELU_TANH:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
      return std::max(x, 0.0);
  }
}

TEST(gates_of_tiles) {
  constexpr int64_t kRows = 3, kStride = 100;
  for (const Set& set : sets()) {
    for (const int64_t pairs : {1, 2, 3}) {
      const std::vector<float> x = normal(kRows * kStride, 1, 4);
      for (const int32_t kind : {RLT_ACT_SILU, RLT_ACT_GELU, RLT_ACT_GELU_TANH, RLT_ACT_RELU}) {
        std::vector<float> y(kRows * kStride, 7.0f);
        set.kernels->gate_panels(x.data(), kStride, y.data(), kStride, kRows, pairs, kind);
        double worst = 0;
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t j = 0; j < kStride; ++j) {
            const auto at = static_cast<size_t>(i * kStride + j / kPanel * 2 * kPanel + j % kPanel);
            const double want =
                j < pairs * kPanel ? activation(kind, x[at]) * x[at + static_cast<size_t>(kPanel)] : 7;
            worst = std::max(worst, std::abs(y[static_cast<size_t>(i * kStride + j)] - want));
          }
        }
        EXPECT_AT_MOST(worst, 1e-5, std::string(set.name) + ", activation " + std::to_string(kind));
      }
    }
  }
}

TEST(kernels_of_rows) {
  for (const Set& set : sets()) {
    const Kernels& kernels = *set.kernels;
    for (const int64_t n : {1, 15, 16, 77, 300}) {
      const auto size = static_cast<size_t>(n);
      const std::vector<float> x = normal(size, 1, 4);
      std::vector<float> y(size);
      for (const int32_t kind : {RLT_ACT_SILU, RLT_ACT_GELU, RLT_ACT_GELU_TANH, RLT_ACT_RELU}) {
        double worst = 0;
        y = x;
        kernels.activate(y.data(), n, kind);
        for (size_t i = 0; i < size; ++i) worst = std::max(worst, std::abs(y[i] - activation(kind, x[i])));
        EXPECT_AT_MOST(worst, 4e-6, std::string(set.name) + ", activation " + std::to_string(kind));
      }
      y = x;
      kernels.softcap(y.data(), n, 1 / 3.0f, 3);
      double worst = 0;
      for (size_t i = 0; i < size; ++i) worst = std::max(worst, std::abs(y[i] - 3 * std::tanh(x[i] / 3.0)));
      EXPECT_AT_MOST(worst, 2e-6, set.name);

      const float peak = *std::max_element(x.begin(), x.end());
      EXPECT_EQUAL(kernels.peak(x.data(), n), peak);
      double sum = 0, tempered = 0;
      for (const float v : x) {
        sum += std::exp(static_cast<double>(v) - peak);
        tempered += std::exp((static_cast<double>(v) - peak) * 0.5);
      }
      EXPECT_AT_MOST(std::abs(kernels.sum_exp(x.data(), n, peak) / sum - 1), 1e-6, set.name);
      std::vector<double> sums(2);
      EXPECT_AT_MOST(
          std::abs(kernels.exp_blocks(x.data(), n, peak, 0.5f, y.data(), sums.data()) / tempered - 1), 1e-6,
          set.name);
      EXPECT_AT_MOST(std::abs((sums[0] + sums[1]) / tempered - 1), 1e-6, set.name);
      y = x;
      float top;
      EXPECT_AT_MOST(std::abs(kernels.softmax(y.data(), n, 1, &top) / sum - 1), 1e-6, set.name);
      EXPECT_EQUAL(top, peak);

      std::vector<int32_t> ids(size), want;
      for (size_t i = 0; i < size; ++i) {
        if (x[i] >= 1.5f) want.push_back(static_cast<int32_t>(i));
      }
      ids.resize(static_cast<size_t>(kernels.at_least(x.data(), n, 1.5f, ids.data())));
      EXPECT(ids == want);
    }
  }
}

}  // namespace
