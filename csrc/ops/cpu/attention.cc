// Attention inside each sequence of a packed batch, parallel over (sequence, head). One head's scores are
// L×L floats of scratch; nothing of the batch's length squared is ever kept: backward recomputes the
// probabilities from the saved log denominators (Dao 2022, §3.1).
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/cpu/rows.h"
#include "ops/packed.h"

// From the BLAS inside libtorch. Inside at::parallel_for it runs on the calling thread alone.
extern "C" void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                       const float* beta, float* c, const int* ldc);

namespace rlt {

const int32_t* checked_cu_seqlens(const at::Tensor& cu_seqlens, int64_t rows) {
  TORCH_CHECK(cu_seqlens.scalar_type() == at::kInt && cu_seqlens.dim() == 1 && cu_seqlens.numel() >= 1 &&
                  cu_seqlens.is_contiguous() && cu_seqlens.device().is_cpu(),
              "cu_seqlens must be a dense int32 vector of at least one element, got ",
              cu_seqlens.scalar_type(), " ", cu_seqlens.sizes());
  const int32_t* cu = cu_seqlens.const_data_ptr<int32_t>();
  const int64_t sequences = cu_seqlens.numel() - 1;
  TORCH_CHECK(cu[0] == 0 && cu[sequences] == rows, "cu_seqlens must run from 0 to ", rows, ", runs from ",
              cu[0], " to ", cu[sequences]);
  for (int64_t s = 0; s < sequences; ++s) {
    TORCH_CHECK(cu[s] <= cu[s + 1], "cu_seqlens falls from ", cu[s], " to ", cu[s + 1], " at sequence ", s);
  }
  return cu;
}

namespace {

// A row-major matrix of one head inside a packed tensor, or of scratch.
struct Matrix {
  const float* data;
  int stride;
};

// c = op(a) op(b), row major, c [m, n], inner length k; an upper-case T transposes.
void gemm(char trans_a, char trans_b, int m, int n, int k, Matrix a, Matrix b, float* c, int c_stride) {
  const float one = 1, zero = 0;
  sgemm_(&trans_b, &trans_a, &n, &m, &k, &one, b.data, &b.stride, a.data, &a.stride, &zero, c, &c_stride);
}

struct Shape {
  int64_t rows, width, heads, head_dim, sequences;
  const int32_t* cu;
};

Shape check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens,
            int64_t heads, double scale) {
  TORCH_CHECK(q.dim() == 2 && k.sizes() == q.sizes() && v.sizes() == q.sizes() && heads > 0 &&
                  q.size(1) > 0 && q.size(1) % heads == 0,
              "varlen_attention: q ", q.sizes(), ", k ", k.sizes(), " and v ", v.sizes(), " do not fit ",
              heads, " heads");
  TORCH_CHECK(q.scalar_type() == at::kFloat && k.scalar_type() == at::kFloat && v.scalar_type() == at::kFloat,
              "varlen_attention: q, k and v must be float32");
  TORCH_CHECK(q.is_contiguous() && k.is_contiguous() && v.is_contiguous(),
              "varlen_attention: q, k and v must be dense");
  TORCH_CHECK(scale >= 0, "varlen_attention: scale must not be negative, got ", scale);
  return {q.size(0),
          q.size(1),
          heads,
          q.size(1) / heads,
          cu_seqlens.numel() - 1,
          checked_cu_seqlens(cu_seqlens, q.size(0))};
}

// Calls body(first row, length, head, scratch) for each head of each sequence, scratch being n_scratch
// L×L matrices of the calling thread.
template <typename Body>
void for_each_head(const Shape& s, int n_scratch, const Body& body) {
  at::parallel_for(0, s.sequences * s.heads, 1, [&](int64_t begin, int64_t end) {
    at::Tensor scratch;  // aligned like every tensor: the BLAS rounds differently at other alignments
    for (int64_t task = begin; task < end; ++task) {
      const int64_t sequence = task / s.heads;
      const int64_t length = s.cu[sequence + 1] - s.cu[sequence];
      if (length == 0) continue;
      const int64_t need = n_scratch * length * length;
      if (!scratch.defined() || scratch.numel() < need) scratch = at::empty({need}, at::kFloat);
      body(s.cu[sequence], length, task % s.heads, scratch.mutable_data_ptr<float>());
    }
  });
}

std::tuple<at::Tensor, at::Tensor> attention_cpu(const at::Tensor& q, const at::Tensor& k,
                                                 const at::Tensor& v, const at::Tensor& cu_seqlens,
                                                 int64_t heads, double scale) {
  const Shape s = check(q, k, v, cu_seqlens, heads, scale);
  at::Tensor out = at::empty_like(q);
  at::Tensor lse = at::empty({heads, s.rows}, q.options());
  const float *qp = q.const_data_ptr<float>(), *kp = k.const_data_ptr<float>(),
              *vp = v.const_data_ptr<float>();
  float *op = out.mutable_data_ptr<float>(), *lp = lse.mutable_data_ptr<float>();
  const int stride = static_cast<int>(s.width), d = static_cast<int>(s.head_dim);
  for_each_head(s, 1, [&](int64_t first, int64_t length, int64_t head, float* scores) {
    const int n = static_cast<int>(length);
    const int64_t at = first * s.width + head * s.head_dim;
    gemm('N', 'T', n, n, d, {qp + at, stride}, {kp + at, stride}, scores, n);
    for (int64_t i = 0; i < length; ++i) {
      lp[head * s.rows + first + i] = softmax_row(scores + i * length, length, static_cast<float>(scale));
    }
    gemm('N', 'N', n, d, n, {scores, n}, {vp + at, stride}, op + at, stride);
  });
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t heads,
    double scale_d) {
  const Shape s = check(q, k, v, cu_seqlens, heads, scale_d);
  TORCH_CHECK(grad.sizes() == q.sizes() && grad.is_contiguous() && out.sizes() == q.sizes() &&
                  out.is_contiguous() && lse.numel() == heads * s.rows && lse.is_contiguous(),
              "varlen_attention_backward: grad ", grad.sizes(), ", out ", out.sizes(), " and lse ",
              lse.sizes(), " do not fit q ", q.sizes(), ", or are not dense");
  at::Tensor grad_q = at::empty_like(q), grad_k = at::empty_like(k), grad_v = at::empty_like(v);
  const float *gp = grad.const_data_ptr<float>(), *qp = q.const_data_ptr<float>(),
              *kp = k.const_data_ptr<float>(), *vp = v.const_data_ptr<float>(),
              *op = out.const_data_ptr<float>(), *lp = lse.const_data_ptr<float>();
  float *gq = grad_q.mutable_data_ptr<float>(), *gk = grad_k.mutable_data_ptr<float>(),
        *gv = grad_v.mutable_data_ptr<float>();
  const int stride = static_cast<int>(s.width), d = static_cast<int>(s.head_dim);
  const auto scale = static_cast<float>(scale_d);
  for_each_head(s, 2, [&](int64_t first, int64_t length, int64_t head, float* probs) {
    const int n = static_cast<int>(length);
    const int64_t at = first * s.width + head * s.head_dim;
    float* scores = probs + length * length;
    gemm('N', 'T', n, n, d, {qp + at, stride}, {kp + at, stride}, probs, n);
    for (int64_t i = 0; i < length; ++i) {
      exp_row(probs + i * length, length, scale, lp[head * s.rows + first + i]);
    }
    gemm('T', 'N', n, d, n, {probs, n}, {gp + at, stride}, gv + at, stride);
    gemm('N', 'T', n, n, d, {gp + at, stride}, {vp + at, stride}, scores, n);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t row = at + i * s.width;
      const float delta = dot_row(gp + row, op + row, s.head_dim);
      softmax_backward_row(scores + i * length, probs + i * length, length, delta, scale);
    }
    gemm('N', 'N', n, d, n, {scores, n}, {kp + at, stride}, gq + at, stride);
    gemm('T', 'N', n, d, n, {scores, n}, {qp + at, stride}, gk + at, stride);
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CPU, m) {
  m.impl("varlen_attention", &rlt::attention_cpu);
  m.impl("varlen_attention_backward", &rlt::attention_backward_cpu);
}
