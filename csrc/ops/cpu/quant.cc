// Weights to blocks of few bits and back, on the CPU.
#include "ops/quant.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/parallel.h"
#include "ops/widen.h"

namespace rlt {
namespace {

const QuantFormat& checked_format(const char* op, int64_t quant) {
  TORCH_CHECK(quant > 0 && quant <= kQuantFormats, op, ": there is no quantised type ", quant);
  return format_of(static_cast<Quant>(quant));
}

int64_t checked_row_bytes(const char* op, const QuantFormat& format, int64_t in) {
  const int64_t bytes = in > 0 ? format.row_bytes(in) : 0;
  TORCH_CHECK(bytes > 0, op, ": ", format.name, " needs rows of a multiple of ", format.values,
              " values, the weight has ", in);
  return bytes;
}

at::Tensor quantize_cpu(const at::Tensor& w, int64_t quant) {
  const QuantFormat& format = checked_format("quantize", quant);
  TORCH_CHECK(can_quantize(format.quant), "quantize: ", format.name, " is only read; use int8 or nf4");
  TORCH_CHECK(w.dim() == 2 && w.is_contiguous(), "quantize: the weight must be a dense matrix, got ",
              w.sizes());
  check_weight("quantize", w);
  const int64_t rows = w.size(0), in = w.size(1), row_bytes = checked_row_bytes("quantize", format, in);
  at::Tensor out = at::empty({rows, row_bytes}, at::kByte);
  auto* const to = out.mutable_data_ptr<uint8_t>();
  parallel_for(0, rows, grain(16 * in), [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(in));
    for (int64_t i = begin; i < end; ++i) {
      quantize_row(format.quant, float_rows(w, i, 1, scratch.data()), in, to + i * row_bytes);
    }
  });
  return out;
}

at::Tensor dequantize_cpu(const at::Tensor& rows, int64_t quant, int64_t in,
                          std::optional<at::ScalarType> asked) {
  const at::ScalarType dtype = asked.value_or(quant_type());
  const QuantFormat& format = checked_format("dequantize", quant);
  const int64_t row_bytes = checked_row_bytes("dequantize", format, in);
  TORCH_CHECK(
      rows.dim() == 2 && rows.scalar_type() == at::kByte && rows.is_contiguous() && rows.size(1) == row_bytes,
      "dequantize: ", format.name, " rows of ", in, " values are dense uint8 [out, ", row_bytes, "], got ",
      rows.scalar_type(), " ", rows.sizes());
  TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat, "dequantize: want bfloat16 or float32, got ",
              dtype);
  at::Tensor out = at::empty({rows.size(0), in}, dtype);
  const auto* const from = rows.const_data_ptr<uint8_t>();
  void* const to = out.mutable_data_ptr();
  parallel_for(0, rows.size(0), grain(in), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (dtype == at::kFloat) {
        dequantize_row(format.quant, from + i * row_bytes, in, static_cast<float*>(to) + i * in);
      } else {
        dequantize_row(format.quant, from + i * row_bytes, in, static_cast<uint16_t*>(to) + i * in);
      }
    }
  });
  return out;
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CPU, m) {
  m.impl("quantize", &rlt::quantize_cpu);
  m.impl("dequantize", &rlt::dequantize_cpu);
}
