#include "ops/cpu/widen.h"

#include "ops/cpu/lanes.h"

namespace rlt {
namespace {

RLT_INLINE float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

RLT_CLONES void widen_bfloat16(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from_bits(static_cast<uint32_t>(from[i]) << 16);
}

// Exponent and mantissa move to their places in a float and the bias changes by a product, which also
// normalises subnormal values; the exponent of infinity and NaN is set outright. All of it integers and
// one product, so that it is a vector loop on every processor.
RLT_CLONES void widen_half(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t half = from[i], magnitude = (half & 0x7fffU) << 13;
    const float scaled = from_bits(magnitude) * 0x1p112f;
    uint32_t bits;
    std::memcpy(&bits, &scaled, sizeof bits);
    bits = magnitude >= 0x0f800000U ? magnitude | 0x7f800000U : bits;
    to[i] = from_bits(bits | (half & 0x8000U) << 16);
  }
}

}  // namespace

void check_weight(const char* op, const at::Tensor& w) {
  const at::ScalarType type = w.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, op,
              ": the weight must be float32, bfloat16 or float16, got ", type);
  TORCH_CHECK(type == at::kFloat || w.is_contiguous(), op, ": a weight of ", type, " must be dense");
}

const float* float_rows(const at::Tensor& w, int64_t first, int64_t count, float* scratch) {
  const int64_t at = first * w.size(1), n = count * w.size(1);
  if (w.scalar_type() == at::kFloat) return w.const_data_ptr<float>() + at;
  const auto* from = static_cast<const uint16_t*>(w.const_data_ptr()) + at;
  if (w.scalar_type() == at::kBFloat16) {
    widen_bfloat16(from, scratch, n);
  } else {
    widen_half(from, scratch, n);
  }
  return scratch;
}

}  // namespace rlt
