// Every operator of ours, on one screen. Names are rltrain::<name>.
#include <torch/library.h>

TORCH_LIBRARY(rltrain, m) {
  // y = x wᵀ + bias. x [N, in], w [out, in], bias [out]; result [N, out].
  m.def("linear(Tensor x, Tensor w, Tensor? bias) -> Tensor");

  // y = x wᵀ + bias + scale · drop(x) aᵀ bᵀ, and drop(x) aᵀ, which backward needs (LoRA, Hu 2021, eq. 3).
  // a [r, in], b [out, r]. drop scales by 1/(1-p) and keeps feature j of row i where
  // keep(row_keys[i], layer, j); row_keys [N] int64, unused with p = 0.
  m.def(
      "lora_linear(Tensor x, Tensor w, Tensor? bias, Tensor a, Tensor b, float scale, float p=0.0, "
      "Tensor? row_keys=None, int layer=0) -> (Tensor, Tensor)");

  // Inverted dropout by a hash of (row key, layer, feature): a mask depends on nothing else, so neither
  // on the batch nor on the order of calls. x [N, F], row_keys [N] int64. p is in [0, 1).
  m.def("hash_dropout(Tensor x, Tensor row_keys, int layer, float p) -> Tensor");

  // Bidirectional attention inside each sequence of a packed batch (Vaswani 2017, eq. 1).
  // q, k, v [N, heads·d]; cu_seqlens [S+1] int32; result [N, heads·d], and the log of the softmax's
  // denominator, [heads, N], which backward needs. Memory is linear in N.
  m.def(
      "varlen_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, int heads, float scale) -> "
      "(Tensor, Tensor)");
  m.def(
      "varlen_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "Tensor cu_seqlens, int heads, float scale) -> (Tensor, Tensor, Tensor)");

  // layer_norm(x + residual) (Ba 2016), and the sum's mean and 1/σ, [N] each, which backward needs
  // together with the sum. x, residual [N, H]; weight, bias [H]. No gradient for weight or bias.
  m.def(
      "add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "add_layer_norm_backward(Tensor grad, Tensor sum, Tensor weight, Tensor mean, Tensor rstd) -> "
      "Tensor");

  // Mean of each sequence's rows. x [N, H], cu_seqlens [S+1] int32; result [S, H].
  m.def("segment_mean(Tensor x, Tensor cu_seqlens) -> Tensor");
  m.def("segment_mean_backward(Tensor grad, Tensor cu_seqlens) -> Tensor");
}
