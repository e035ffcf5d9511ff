// Products of row-major matrices by the BLAS inside libtorch. Inside at::parallel_for it runs on the calling
// thread alone.
#pragma once

extern "C" void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                       const float* beta, float* c, const int* ldc);

namespace rlt {

struct Matrix {
  const float* data;
  int stride;
};

// c = op(a) op(b), or c += with add; row major, c [m, n], inner length k; an upper-case T transposes.
inline void gemm(char trans_a, char trans_b, int m, int n, int k, Matrix a, Matrix b, float* c, int c_stride,
                 bool add = false) {
  const float one = 1, keep = add ? 1 : 0;
  sgemm_(&trans_b, &trans_a, &n, &m, &k, &one, b.data, &b.stride, a.data, &a.stride, &keep, c, &c_stride);
}

}  // namespace rlt
