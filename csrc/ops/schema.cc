// Every operator of ours, on one screen. Names are rltrain::<name>.
#include <torch/library.h>

TORCH_LIBRARY(rltrain, m) {
  // y = x wᵀ + bias. x [N, in], w [out, in], bias [out]; result [N, out]. w may be bfloat16 or float16 where
  // it is frozen; the rest is float32.
  m.def("linear(Tensor x, Tensor w, Tensor? bias) -> Tensor");

  // y = x wᵀ + bias + scale · drop(x) aᵀ bᵀ, and drop(x) aᵀ, which backward needs (LoRA, Hu 2021, eq. 3).
  // a [r, in], b [out, r]. drop scales by 1/(1-p) and keeps feature j of row i where
  // keep(row_keys[i], layer, j); row_keys [N] int64, unused with p = 0.
  m.def(
      "lora_linear(Tensor x, Tensor w, Tensor? bias, Tensor a, Tensor b, float scale, float p=0.0, "
      "Tensor? row_keys=None, int layer=0) -> (Tensor, Tensor)");

  // Rows of blocks of few bits (kernels/quant.h), uint8 [out, row bytes], and back: w [out, in]. quant is a
  // number of rltrain.h. float32 is exact; None is what products of layers with rows take for the weight:
  // bfloat16, or float32 where the processor has no products of bfloat16.
  m.def("quantize(Tensor w, int quant) -> Tensor");
  m.def("dequantize(Tensor rows, int quant, int columns, ScalarType? dtype) -> Tensor");

  // Their gradients, from that of y [N, out]: of x; of w [out, in]; of x (undefined without needs_x), a and
  // b.
  m.def("linear_input_grad(Tensor grad, Tensor w) -> Tensor");
  m.def("linear_weight_grad(Tensor grad, Tensor x) -> Tensor");
  m.def(
      "lora_grads(Tensor grad, Tensor x, Tensor w, Tensor a, Tensor b, Tensor low, float scale, float p, "
      "Tensor? row_keys, int layer, bool needs_x) -> (Tensor, Tensor, Tensor)");

  // Inverted dropout by a hash of (row key, layer, feature): a mask depends on nothing else, so neither
  // on the batch nor on the order of calls. x [N, F], row_keys [N] int64. p is in [0, 1).
  m.def("hash_dropout(Tensor x, Tensor row_keys, int layer, float p) -> Tensor");

  // Attention inside each sequence of a packed batch (Vaswani 2017, eq. 1). q [N, heads·d];
  // k, v [N, kv_heads·d], each head of which serves heads/kv_heads queries (Ainslie 2023); rows may be
  // strided; cu_seqlens [S+1] int32. causal: a query sees the keys up to its own. window w, unless 0: only
  // keys less than w away. softcap c: scores become c·tanh(score/c). Result [N, heads·d], and the log of the
  // softmax's denominator, [heads, N], which backward needs. Memory is linear in N. compute: the type that a
  // GPU may round q, k and v to for its products, float32 where it is not given; a CPU computes in float32.
  // Where continues [S] int32 is not -1, a sequence is the rest of one whose beginning is sequence
  // continues[s], with others maybe; it follows right behind that one or behind another such rest. Its
  // queries see the beginning's keys too.
  m.def(
      "varlen_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, int heads, float scale, "
      "bool causal=False, int window=0, float softcap=0.0, Tensor? continues=None, "
      "ScalarType? compute=None) -> (Tensor, Tensor)");
  m.def(
      "varlen_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "Tensor cu_seqlens, int heads, float scale, bool causal, int window, float softcap, "
      "Tensor? continues, ScalarType? compute) -> (Tensor, Tensor, Tensor)");

  // y = x/√(mean(x²) + eps) · weight, or · (1 + weight) (Zhang and Sennrich 2019, eq. 4), and 1/√ of each
  // row, [N], which backward needs. x [N, H], weight [H].
  m.def("rms_norm(Tensor x, Tensor weight, float eps, bool plus_one) -> (Tensor, Tensor)");
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd, bool plus_one) -> Tensor");

  // Rotates the leading features of each head (Su 2021, eq. 34; feature j with feature j + rotary/2), or,
  // with inverse, back. x [N, heads·head_dim], rows may be strided; cos, sin [N, rotary/2].
  m.def("rope(Tensor x, Tensor cos, Tensor sin, int head_dim, bool inverse) -> Tensor");

  // act(gate) · up (Shazeer 2020, eq. 5). gate, up [N, I], rows may be strided; activation as in rltrain.h.
  m.def("gated_act(Tensor gate, Tensor up, int activation) -> Tensor");
  m.def("gated_act_backward(Tensor grad, Tensor gate, Tensor up, int activation) -> (Tensor, Tensor)");

  // layer_norm(x + residual) (Ba 2016), and the sum's mean and 1/σ, [N] each, which backward needs
  // together with the sum. x, residual [N, H]; weight, bias [H]. No gradient for weight or bias.
  m.def(
      "add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "add_layer_norm_backward(Tensor grad, Tensor sum, Tensor weight, Tensor mean, Tensor rstd) -> "
      "Tensor");

  // Rows of x [N, ...] by number. index [M] int64, in which a row may come more than once; result [M, ...].
  m.def("select_rows(Tensor x, Tensor index) -> Tensor");

  // Mean of each sequence's rows. x [N, H], cu_seqlens [S+1] int32; result [S, H].
  m.def("segment_mean(Tensor x, Tensor cu_seqlens) -> Tensor");
  m.def("segment_mean_backward(Tensor grad, Tensor cu_seqlens) -> Tensor");

  // log softmax(z) at the targets, the softmax's entropy, and the target's rank: how many logits exceed its
  // own. z = c·tanh((h wᵀ + b)/c)/temperature, without the tanh where the softcap c is 0. hidden [M, H];
  // weight [V, H] float32, bfloat16 or float16; bias [V]; targets [M] int64; results [M] each, then log Σ
  // exp z, [M], and with slope the derivative of each log-probability by its hidden state, [M, H], both of
  // which backward needs. No gradient for rank, lse and slope. Memory does not grow with V.
  m.def(
      "token_logprobs(Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, float temperature=1.0, "
      "float softcap=0.0, bool slope=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  // Gradient of hidden, and of weight and bias, from those of log-probabilities and entropies, [M] each.
  m.def(
      "token_logprobs_hidden_grad(Tensor grad_logprobs, Tensor grad_entropy, Tensor hidden, Tensor weight, "
      "Tensor? bias, Tensor targets, Tensor entropy, Tensor lse, float temperature, float softcap) -> "
      "Tensor");
  m.def(
      "token_logprobs_weight_grad(Tensor grad_logprobs, Tensor grad_entropy, Tensor hidden, Tensor weight, "
      "Tensor? bias, Tensor targets, Tensor entropy, Tensor lse, float temperature, float softcap) -> "
      "(Tensor, Tensor)");
}
