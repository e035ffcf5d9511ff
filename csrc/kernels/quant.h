// Frozen weights of few bits. A row of a weight is stored by itself: blocks of values, each block with its
// scale. Values are dequantised as the format says. Where the processor has products of bfloat16 they are
// then rounded to it: a quantised model computes the same bits as the bfloat16 model that it dequantises to.
// Elsewhere rounding would cost more time than the product, and the bits are those of the float32 model.
#pragma once

#include <cstdint>

namespace rlt {

enum class Quant : int32_t {
  kNone,
  kInt8,  // one scale for each row: float32 absmax, then int8 q of each value. w = q·absmax/127
  kNF4,   // float32 absmax, 32 bytes of two codes each, the first value in the high half. w = code[q]·absmax
  // The blocks of GGUF.
  kQ4_0,
  kQ4_1,
  kQ8_0,
  kQ4_K,
  kQ6_K,
};

struct QuantFormat {
  Quant quant;
  const char* name;  // as in the names of weights, "nf4"
  int64_t values;    // of a block; 1: any number of values
  int64_t bytes;     // of a block
  int64_t header;    // bytes before the blocks of a row

  // Bytes of a row of `in` values, 0 if blocks cannot hold that many.
  int64_t row_bytes(int64_t in) const { return in % values == 0 ? header + in / values * bytes : 0; }
};

constexpr int kQuantFormats = 7;
// All formats, in the order of Quant.
const QuantFormat* quant_formats();
// The format of a type other than kNone.
inline const QuantFormat& format_of(Quant quant) { return quant_formats()[static_cast<int>(quant) - 1]; }

// Quantises a row of `in` values. Only kInt8 and kNF4 can be written.
bool can_quantize(Quant quant);
void quantize_row(Quant quant, const float* x, int64_t in, uint8_t* row);

// Writes the `in` values of a row: as float32 exactly as the format defines them, or rounded to bfloat16.
void dequantize_row(Quant quant, const uint8_t* row, int64_t in, float* y);
void dequantize_row(Quant quant, const uint8_t* row, int64_t in, uint16_t* y);

// A block by its parts, for those who pack it otherwise: w = (T(q)·scale)·factor + addend, each step rounded
// to float32. T(q) is kNF4Values[q] for kNF4, q - 8 for kQ4_0, else q; factor is kInt8Factor for kInt8,
// else 1. Scale and addend are the bits of float16 for kQ4_0, kQ4_1 and kQ8_0, else of float32.
extern const float kNF4Values[16];
constexpr float kInt8Factor = 7.874015718698502e-3f;  // 1/127
struct QuantParts {
  uint32_t scale = 0, addend = 0;
  int8_t q[128];
};
// The parts of values [first, first + n) of a row, which share a scale; n is at most 128.
void split_block(Quant quant, const uint8_t* row, int64_t first, int64_t n, QuantParts* parts);

}  // namespace rlt
