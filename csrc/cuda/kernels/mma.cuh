// Warp-level products of 16 x 16 by 16 x 8 two-byte elements on tensor cores. Lane 4r + c holds
// - of a (rows by sums): a0 (r; 2c, 2c + 1), a1 (r + 8; 2c, 2c + 1), a2 (r; 2c + 8, 2c + 9),
//   a3 (r + 8; 2c + 8, 2c + 9);
// - of b (sums by columns): b0 (2c, 2c + 1; r), b1 (2c + 8, 2c + 9; r);
// - of the result: d[0], d[1] (r; 2c, 2c + 1), d[2], d[3] (r + 8; 2c, 2c + 1).
// The first of two elements is in the low half of the word.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace rlt::cuda {

// d += a b
__device__ inline void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1, const __nv_bfloat16*) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1, const __half*) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transposes 8 x 8 elements: lane 4r + c passes (r; 2c, 2c + 1) and gets (2c, 2c + 1; r).
__device__ inline uint32_t transpose(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Packs two numbers in a word, rounded to nearest.
__device__ inline uint32_t pack(float low, float high, const __nv_bfloat16*) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(low))) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

__device__ inline uint32_t pack(float low, float high, const __half*) {
  return static_cast<uint32_t>(__half_as_ushort(__float2half_rn(low))) |
         static_cast<uint32_t>(__half_as_ushort(__float2half_rn(high))) << 16;
}

// Joins the low halves of two words; high_halves joins the high ones.
__device__ inline uint32_t low_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ inline uint32_t high_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

}  // namespace rlt::cuda
