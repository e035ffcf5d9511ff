#include "ops/widen.h"

#include "kernels/kernels.h"

namespace rlt {
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
    kernels().widen_bf16(from, scratch, n);
  } else {
    kernels().widen_f16(from, scratch, n);
  }
  return scratch;
}

}  // namespace rlt
