// Log-probabilities, entropies and ranks of given tokens, of libtorch's operators: as many rows at a time as
// a fixed number of logits has room for, so the logits of all of them are never there at once.
#include "ops/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

namespace rlt {
namespace {

constexpr int64_t kLogits = int64_t{1} << 25;  // of a block, at most, where it has more than one row
// Where a log-probability stops, so that a token with the probability 0 has none of the entropy. e^-200 is 0.
constexpr double kLeast = -200;

struct Head {
  at::Tensor hidden, weight, targets;
  OptionalTensor bias;
  double temperature, softcap;

  Head(const at::Tensor& h, const at::Tensor& w, const OptionalTensor& b, const at::Tensor& ids, double t,
       double c)
      : hidden(h), targets(ids), bias(b), temperature(t), softcap(c) {
    TORCH_CHECK(h.dim() == 2 && w.dim() == 2 && h.size(1) == w.size(1) && w.size(0) > 0 &&
                    (!b || (b->dim() == 1 && b->size(0) == w.size(0))),
                "token_logprobs: hidden ", h.sizes(), ", weight ", w.sizes(), " and the bias do not fit");
    TORCH_CHECK(h.scalar_type() == at::kFloat && (!b || b->scalar_type() == at::kFloat),
                "token_logprobs: hidden and bias must be float32");
    TORCH_CHECK(ids.scalar_type() == at::kLong && ids.dim() == 1 && ids.size(0) == h.size(0),
                "token_logprobs: targets must be ", h.size(0), " int64 values, got ", ids.scalar_type(), " ",
                ids.sizes());
    TORCH_CHECK(std::isfinite(t) && t > 0 && std::isfinite(c) && c >= 0, "token_logprobs: temperature ", t,
                " must be positive and softcap ", c, " not negative");
    // A bad index would end the process on a GPU.
    TORCH_CHECK(ids.numel() == 0 || (ids.min().item<int64_t>() >= 0 && ids.max().item<int64_t>() < w.size(0)),
                "token_logprobs: a target is outside of [0, ", w.size(0), ")");
    weight = w.to(at::kFloat);
  }

  int64_t rows() const { return hidden.size(0); }

  // z of rows [begin, begin + count), [count, V].
  at::Tensor logits(int64_t begin, int64_t count) const {
    at::Tensor z = at::linear(hidden.narrow(0, begin, count), weight, bias);
    if (softcap > 0) z.div_(softcap).tanh_().mul_(softcap);
    return z.div_(temperature);
  }
  // The derivative of z by h wᵀ + b, in place of d, which is that of something by z.
  at::Tensor through(at::Tensor d, const at::Tensor& z) const {
    if (softcap > 0) d.mul_(z.mul(temperature / softcap).square_().neg_().add_(1));
    return d.div_(temperature);
  }
  at::Tensor column(int64_t begin, int64_t count) const {
    return targets.narrow(0, begin, count).unsqueeze(1);
  }

  template <typename Body>
  void for_blocks(const Body& body) const {
    const int64_t most = std::max<int64_t>(1, kLogits / weight.size(0));
    for (int64_t begin = 0; begin < rows(); begin += most) body(begin, std::min(most, rows() - begin));
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
      at::empty({with_slope ? head.rows() : 0, with_slope ? hidden.size(1) : 0}, hidden.options());
  head.for_blocks([&](int64_t begin, int64_t count) {
    const at::Tensor z = head.logits(begin, count), column = head.column(begin, count);
    const at::Tensor sums = z.logsumexp(1, true), own = z.gather(1, column),
                     log_p = z.sub(sums).clamp_min_(kLeast);
    at::Tensor p = log_p.exp();
    logprobs.narrow(0, begin, count).copy_(own.sub(sums).squeeze(1));
    entropy.narrow(0, begin, count).copy_(p.mul(log_p).sum(1).neg_().clamp_min_(0));
    rank.narrow(0, begin, count).copy_(z.gt(own).sum(1));
    lse.narrow(0, begin, count).copy_(sums.squeeze(1));
    if (!with_slope) return;
    p.neg_();
    p.scatter_(1, column, p.gather(1, column).add_(1));
    slope.narrow(0, begin, count).copy_(at::mm(head.through(p, z), head.weight));
  });
  return {logprobs, entropy, rank, lse, with_slope ? slope : at::empty({0}, hidden.options())};
}

// The loss's derivatives by h wᵀ + b of a block of rows.
struct RowGrads {
  const at::Tensor &logprobs, &entropies, &entropy, &lse;

  at::Tensor of(const Head& head, int64_t begin, int64_t count) const {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, count).unsqueeze(1); };
    const at::Tensor z = head.logits(begin, count), log_p = z.sub(part(lse)).clamp_min_(kLeast),
                     column = head.column(begin, count);
    // d entropy / dz = -p (log p + entropy), d log p(target) / dz = [target] - p
    at::Tensor d =
        log_p.add(part(entropy)).mul_(part(entropies)).add_(part(logprobs)).neg_().mul_(log_p.exp());
    d.scatter_(1, column, d.gather(1, column).add_(part(logprobs)));
    return head.through(d, z);
  }
};

at::Tensor hidden_grad_cuda(const at::Tensor& grad_logprobs, const at::Tensor& grad_entropy,
                            const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias,
                            const at::Tensor& targets, const at::Tensor& entropy, const at::Tensor& lse,
                            double temperature, double softcap) {
  const Head head(hidden, weight, bias, targets, temperature, softcap);
  const RowGrads grads{grad_logprobs, grad_entropy, entropy, lse};
  at::Tensor out = at::empty(hidden.sizes(), hidden.options());
  head.for_blocks([&](int64_t begin, int64_t count) {
    out.narrow(0, begin, count).copy_(at::mm(grads.of(head, begin, count), head.weight));
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> weight_grad_cuda(const at::Tensor& grad_logprobs,
                                                    const at::Tensor& grad_entropy, const at::Tensor& hidden,
                                                    const at::Tensor& weight, const OptionalTensor& bias,
                                                    const at::Tensor& targets, const at::Tensor& entropy,
                                                    const at::Tensor& lse, double temperature,
                                                    double softcap) {
  const Head head(hidden, weight, bias, targets, temperature, softcap);
  const RowGrads grads{grad_logprobs, grad_entropy, entropy, lse};
  at::Tensor of_weight = at::zeros(weight.sizes(), hidden.options());
  at::Tensor of_bias = at::zeros({weight.size(0)}, hidden.options());
  head.for_blocks([&](int64_t begin, int64_t count) {
    const at::Tensor d = grads.of(head, begin, count);
    of_weight.addmm_(d.t(), hidden.narrow(0, begin, count));
    of_bias.add_(d.sum(0));
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
