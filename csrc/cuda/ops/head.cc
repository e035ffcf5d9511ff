// Log-probabilities, entropies and ranks of given tokens, in blocks of rows with a bounded number of logits,
// so that the logits of all rows never exist at once.
#include "ops/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "cuda/ops/launch.h"
#include "ops/product.h"

namespace rlt {
namespace {

constexpr int64_t kLogits = int64_t{1} << 26;  // limit per block, unless it has only one row
constexpr int64_t kTile = 128;                 // blocks are multiples of the products' tile

struct Head {
  at::Tensor hidden, weight, targets;
  OptionalTensor bias;
  double temperature, softcap;

  Head(const at::Tensor& h, const at::Tensor& w, const OptionalTensor& b, const at::Tensor& ids, double t,
       double c)
      : hidden(h), weight(w), targets(ids.contiguous()), bias(b), temperature(t), softcap(c) {
    TORCH_CHECK(h.dim() == 2 && w.dim() == 2 && h.size(1) == w.size(1) && w.size(0) > 0 &&
                    (!b || (b->dim() == 1 && b->size(0) == w.size(0))),
                "token_logprobs: hidden ", h.sizes(), ", weight ", w.sizes(), " and the bias do not fit");
    TORCH_CHECK(h.scalar_type() == at::kFloat && (!b || b->scalar_type() == at::kFloat),
                "token_logprobs: hidden and bias must be float32");
    TORCH_CHECK(ids.scalar_type() == at::kLong && ids.dim() == 1 && ids.size(0) == h.size(0) &&
                    ids.device() == h.device(),
                "token_logprobs: targets must be ", h.size(0), " int64 values on ", h.device(), ", got ",
                ids.scalar_type(), " ", ids.sizes(), " on ", ids.device());
    TORCH_CHECK(std::isfinite(t) && t > 0 && std::isfinite(c) && c >= 0, "token_logprobs: temperature ", t,
                " must be positive and softcap ", c, " not negative");
    // Targets on a GPU are not checked, which would wait for the device; the kernel returns NaN for invalid
    // ones.
    for (int64_t i = 0; ids.is_cpu() && i < ids.numel(); ++i) {
      const int64_t target = targets.const_data_ptr<int64_t>()[i];
      TORCH_CHECK(target >= 0 && target < w.size(0), "token_logprobs: target ", target, " at position ", i,
                  " is outside of the vocabulary of ", w.size(0));
    }
  }

  int64_t rows() const { return hidden.size(0); }
  int64_t vocab() const { return weight.size(0); }

  template <typename Body>
  void for_blocks(const Body& body) const {
    int64_t most = std::max<int64_t>(1, kLogits / vocab());
    if (most > kTile) most -= most % kTile;
    for (int64_t begin = 0; begin < rows(); begin += most) body(begin, std::min(most, rows() - begin));
  }
  // h wᵀ + b for a block of rows, [count, V].
  at::Tensor logits(int64_t begin, int64_t count) const {
    at::Tensor z = product(hidden.narrow(0, begin, count), weight);
    return bias ? z.add_(*bias) : z;
  }
};

// Inputs of the gradient by the logits, [N] each. Without gradients given, the gradient is that of each row's
// own log-probability.
struct RowGrads {
  at::Tensor lse, entropy;
  OptionalTensor logprobs, entropies;

  RowGrads(const Head& head, const at::Tensor& l, const at::Tensor& h, const OptionalTensor& of_logprobs,
           const OptionalTensor& of_entropies)
      : lse(dense(head, l)), entropy(dense(head, h)) {
    if (of_logprobs) logprobs = dense(head, *of_logprobs);
    if (of_entropies) entropies = dense(head, *of_entropies);
  }

  // Overwrites the logits of a block by their gradient, [count, V] of `type`.
  at::Tensor slope(const Head& head, at::Tensor logits, int64_t begin, at::ScalarType type) const {
    const auto at = [&](const OptionalTensor& t) { return t ? floats(*t) + begin : nullptr; };
    cuda::token_logprobs_slope(Launch(logits).stream, out(logits),
                               head.targets.const_data_ptr<int64_t>() + begin, head.temperature, head.softcap,
                               at(lse), at(entropy), at(logprobs), at(entropies), type_of(type),
                               logits.size(0), head.vocab());
    return logits.view(type).narrow(1, 0, head.vocab());
  }

 private:
  static at::Tensor dense(const Head& head, const at::Tensor& t) {
    TORCH_CHECK(t.dim() == 1 && t.size(0) == head.rows(),
                "token_logprobs: gradients, entropy and lse must be ", head.rows(), " values, got ",
                t.sizes());
    check_floats("token_logprobs", {head.hidden, t});
    return t.contiguous();
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> token_logprobs_cuda(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias, const at::Tensor& targets,
    double temperature, double softcap, bool with_slope) {
  const Head head(hidden, weight, bias, targets, temperature, softcap);
  const auto vector = [&] { return at::empty({head.rows()}, hidden.options()); };
  at::Tensor logprobs = vector(), entropy = vector(), lse = vector();
  at::Tensor rank = at::empty({head.rows()}, targets.options());
  at::Tensor slope =
      with_slope ? at::empty(hidden.sizes(), hidden.options()) : at::empty({0}, hidden.options());
  const RowGrads own(head, lse, entropy, std::nullopt, std::nullopt);
  head.for_blocks([&](int64_t begin, int64_t count) {
    const at::Tensor logits = head.logits(begin, count);
    cuda::token_logprobs(Launch(hidden).stream, floats(logits),
                         head.targets.const_data_ptr<int64_t>() + begin, temperature, softcap,
                         out(logprobs) + begin, out(entropy) + begin,
                         rank.mutable_data_ptr<int64_t>() + begin, out(lse) + begin, count, head.vocab());
    if (!with_slope) return;
    slope.narrow(0, begin, count)
        .copy_(product_back(own.slope(head, logits, begin, back_type(weight)), weight));
  });
  return {logprobs, entropy, rank, lse, slope};
}

at::Tensor hidden_grad_cuda(const at::Tensor& grad_logprobs, const at::Tensor& grad_entropy,
                            const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias,
                            const at::Tensor& targets, const at::Tensor& entropy, const at::Tensor& lse,
                            double temperature, double softcap) {
  const Head head(hidden, weight, bias, targets, temperature, softcap);
  const RowGrads grads(head, lse, entropy, grad_logprobs, grad_entropy);
  at::Tensor grad = at::empty(hidden.sizes(), hidden.options());
  head.for_blocks([&](int64_t begin, int64_t count) {
    const at::Tensor slope = grads.slope(head, head.logits(begin, count), begin, back_type(weight));
    grad.narrow(0, begin, count).copy_(product_back(slope, weight));
  });
  return grad;
}

std::tuple<at::Tensor, at::Tensor> weight_grad_cuda(const at::Tensor& grad_logprobs,
                                                    const at::Tensor& grad_entropy, const at::Tensor& hidden,
                                                    const at::Tensor& weight, const OptionalTensor& bias,
                                                    const at::Tensor& targets, const at::Tensor& entropy,
                                                    const at::Tensor& lse, double temperature,
                                                    double softcap) {
  const Head head(hidden, weight, bias, targets, temperature, softcap);
  const RowGrads grads(head, lse, entropy, grad_logprobs, grad_entropy);
  at::Tensor of_weight = at::zeros(weight.sizes(), hidden.options());
  at::Tensor of_bias = at::zeros({weight.size(0)}, hidden.options());
  head.for_blocks([&](int64_t begin, int64_t count) {
    const at::Tensor slope = grads.slope(head, head.logits(begin, count), begin, at::kFloat);
    of_weight.addmm_(slope.t(), hidden.narrow(0, begin, count));
    of_bias.add_(slope.sum(0));
  });
  return {of_weight, of_bias};
}

}  // namespace
}  // namespace rlt

TORCH_LIBRARY_IMPL(rltrain, CUDA, m) {
  m.impl("token_logprobs", &rlt::token_logprobs_cuda);
  m.impl("token_logprobs_hidden_grad", &rlt::hidden_grad_cuda);
  m.impl("token_logprobs_weight_grad", &rlt::weight_grad_cuda);
}
