// The kernels that feed a token to a decoder: its embedding, queries, keys and values.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <string>

#include "check.h"
#include "cuda/kernels/stream.h"
#include "cuda_pages.h"

namespace {

using namespace rlt;
using rlt::cuda::Type;
using rlt::test::as;
using rlt::test::bytes_of;
using rlt::test::device;
using rlt::test::Random;

const std::vector<Type> kTypes{Type::kF32, Type::kBF16, Type::kF16};

// Error limit relative to the largest number: half a unit in the last place of the type, plus rounding in
// float32.
double rounding(Type type) {
  return type == Type::kF32 ? 1e-6 : type == Type::kBF16 ? 0x1p-8 + 1e-6 : 0x1p-11 + 1e-6;
}

TEST(embed_reads_rows_of_any_type) {
  Random random(3);
  const std::vector<cuda::Row> rows{{4, 2, 0, 0}, {0, 7, 1, 0}, {8, 0, 0, 1}};
  const at::Tensor list = bytes_of(rows), places = random.normal({8, 300});
  for (const Type type : kTypes) {
    const at::Tensor table = random.normal({9, 300}).to(test::scalar_type(type));
    const at::Tensor there = table.to(device()), positions = places.to(device());
    for (const bool learned : {false, true}) {
      at::Tensor x = at::empty({3, 300}, at::TensorOptions(device()).dtype(at::kFloat));
      cuda::embed(cuda::current_stream(device()), as<cuda::Row>(list), there.const_data_ptr(), type,
                  learned ? positions.const_data_ptr<float>() : nullptr, 1.5f, x.mutable_data_ptr<float>(), 3,
                  300);
      for (int64_t i = 0; i < 3; ++i) {
        const cuda::Row& row = rows[static_cast<size_t>(i)];
        at::Tensor want = table.select(0, row.token).to(at::kFloat).mul(1.5);
        if (learned) want = want.add(places.select(0, row.position));
        EXPECT_EQUAL(test::distance(x.cpu().select(0, i), want), 0.0);
      }
    }
  }
}

struct StoreCase {
  const char* name;
  cuda::Shape shape;
  cuda::Qkv layout;
  int64_t half;
  bool norm, plus_one, long_rope;
};

// Reference for heads of x [head_dim] in double: norm, then rotation.
at::Tensor put(const at::Tensor& x, const at::Tensor& norm, bool plus_one, double eps, int64_t half,
               const std::vector<double>& frequencies, double factor, int64_t position) {
  at::Tensor y = x.to(at::kDouble, false, /*copy=*/true);
  if (norm.defined()) {
    const at::Tensor weight = norm.to(at::kDouble).add(plus_one ? 1 : 0);
    y = y.div(y.square().mean().add(eps).sqrt()).mul(weight);
  }
  auto* v = y.mutable_data_ptr<double>();
  for (int64_t j = 0; j < half; ++j) {
    const double angle = static_cast<double>(position) * frequencies[static_cast<size_t>(j)];
    const double a = v[j], b = v[half + j], c = factor * std::cos(angle), s = factor * std::sin(angle);
    v[j] = a * c - b * s;
    v[half + j] = b * c + a * s;
  }
  return y;
}

void check_store(const StoreCase& c, Random& random) {
  const cuda::Shape& s = c.shape;
  constexpr double kEps = 1e-5, kFactor = 1.25, kLongFactor = 0.75;
  const int64_t layer = s.layers - 1, d = s.head_dim;
  test::PageTable table(s, {{0, 40}, {21, 40}, {21, 60, 1}, {4500, 4520}}, random);
  table.host.fill_(-1000);
  table.upload();
  const std::vector<cuda::Row> rows{{0, 0, 0, 0},  {0, 39, 0, 1}, {0, 20, 1, 0},   {0, 21, 1, 0},
                                    {0, 59, 2, 1}, {0, 37, 2, 0}, {0, 4499, 3, 0}, {0, 4517, 3, 1}};
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<double> frequencies, longer;
  for (int64_t j = 0; j < c.half; ++j) {
    frequencies.push_back(std::pow(1e4, -static_cast<double>(j) / static_cast<double>(c.half)));
    longer.push_back(frequencies.back() / 3);
  }
  const at::Tensor qkv = random.normal({count, c.layout.stride}), there = qkv.to(device());
  const at::Tensor q_norm = c.norm ? random.normal({d}, 0.2, 1) : at::Tensor(),
                   k_norm = c.norm ? random.normal({d}, 0.2, 1) : at::Tensor();
  const at::Tensor q_there = c.norm ? q_norm.to(device()) : q_norm,
                   k_there = c.norm ? k_norm.to(device()) : k_norm;
  const at::Tensor list = bytes_of(rows), short_there = bytes_of(frequencies), long_there = bytes_of(longer);
  const cuda::Angles angles{as<double>(short_there), c.long_rope ? as<double>(long_there) : nullptr, kFactor,
                            kLongFactor, c.half};
  at::Tensor queries =
      at::full({count, s.heads, d}, -1000, at::TensorOptions(device()).dtype(test::scalar_type(s.type)));
  cuda::store(cuda::current_stream(device()), as<cuda::Row>(list), table.on_device(), table.pages(),
              there.const_data_ptr<float>(), c.layout, angles,
              c.norm ? q_there.const_data_ptr<float>() : nullptr,
              c.norm ? k_there.const_data_ptr<float>() : nullptr, c.plus_one, kEps, s, layer,
              queries.mutable_data_ptr(), count);

  const at::Tensor pages = table.back(), got = queries.cpu();
  for (int64_t i = 0; i < count; ++i) {
    const cuda::Row& row = rows[static_cast<size_t>(i)];
    const bool is_long = c.long_rope && row.long_rope != 0;
    const auto& angle = is_long ? longer : frequencies;
    const double factor = is_long ? kLongFactor : kFactor, limit = rounding(s.type);
    const at::Tensor
        slot = table.runs(pages, row.place, row.position, row.position + 1)[0].select(0, layer).select(2, 0),
        x = qkv.select(0, i);
    for (int64_t h = 0; h < s.heads; ++h) {
      const at::Tensor q = x.narrow(0, c.layout.q + h * c.layout.q_step, d);
      EXPECT_AT_MOST(test::relative(got.select(0, i).select(0, h),
                                    put(q, q_norm, c.plus_one, kEps, c.half, angle, factor, row.position)),
                     limit, std::string(c.name) + ", queries");
    }
    for (int64_t h = 0; h < s.kv_heads; ++h) {
      const at::Tensor k = x.narrow(0, c.layout.k + h * c.layout.kv_step, d),
                       v = x.narrow(0, c.layout.v + h * c.layout.kv_step, d);
      EXPECT_AT_MOST(test::relative(slot.select(0, 0).select(0, h),
                                    put(k, k_norm, c.plus_one, kEps, c.half, angle, factor, row.position)),
                     limit, std::string(c.name) + ", keys");
      EXPECT_EQUAL(test::distance(slot.select(0, 1).select(0, h), v.to(test::scalar_type(s.type))), 0.0);
    }
  }
  // All other slots still hold their initial value.
  EXPECT_EQUAL(pages.ne(-1000).sum().item<int64_t>(), count * 2 * s.kv_heads * d);
}

TEST(store_norms_turns_and_writes_to_pages) {
  Random random(5);
  for (const Type type : kTypes) {
    const cuda::Shape grouped{2, 6, 2, 24, type}, wide{1, 9, 3, 160, type}, odd{3, 2, 2, 11, type};
    check_store({"fused", grouped, {0, 144, 192, 24, 24, 240}, 12, true, false, false}, random);
    check_store({"part of a head turned", grouped, {0, 144, 192, 24, 24, 250}, 5, false, false, true},
                random);
    check_store({"no rope", wide, {0, 1440, 1920, 160, 160, 2400}, 0, true, true, false}, random);
    check_store({"wide", wide, {0, 1440, 1920, 160, 160, 2400}, 80, true, true, true}, random);
    check_store({"a head after the other", odd, {0, 11, 22, 33, 33, 66}, 4, false, false, false}, random);
  }
}

}  // namespace
