#include "nn/distance.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/softmax.h>

#include "ops/packed.h"

namespace rlt::nn {
namespace {

// Queries and keys of the distances, [heads, d, D], as layers q and k make them. Dropout of their adapters is
// left out: it is for rows of texts.
std::vector<at::Tensor> projected(const Block& block, const BlockPass& pass) {
  const Config& c = *pass.config;
  const AdapterPass plain{pass.adapter.on, 0, std::nullopt};
  std::vector<at::Tensor> both = forward_all({&block.q, &block.k}, pass.distances, plain);
  for (at::Tensor& t : both) t = t.view({-1, c.heads, c.head_dim}).permute({1, 2, 0});
  return both;
}

}  // namespace

at::Tensor distance_attention(const Block& block, const BlockPass& pass, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v) {
  const Config& c = *pass.config;
  const bool content = c.distance == RLT_DISTANCE_CONTENT;
  const std::vector<at::Tensor> far = content ? projected(block, pass) : std::vector<at::Tensor>();
  const int64_t center = pass.distances.size(content ? 0 : 1) / 2;
  const int32_t* cu = checked_cu_seqlens(pass.cu_seqlens, q.size(0));
  std::vector<at::Tensor> mixed;
  for (int64_t s = 0; s + 1 < pass.cu_seqlens.numel(); ++s) {
    const int64_t n = cu[s + 1] - cu[s];
    if (n == 0) continue;
    const auto heads = [&](const at::Tensor& t) {
      return t.narrow(0, cu[s], n).view({n, c.heads, c.head_dim}).transpose(0, 1);
    };
    const auto seen = [&](const at::Tensor& t) { return t.narrow(t.dim() - 1, center - (n - 1), 2 * n - 1); };
    const at::Tensor query = heads(q), key = heads(k);
    const at::Tensor at = at::arange(n, pass.distances.options().dtype(at::kLong));
    const at::Tensor index = at.unsqueeze(1).sub(at.unsqueeze(0)).add(n - 1);  // of the distance from i to j
    at::Tensor scores = at::bmm(query, key.transpose(1, 2));
    if (content) {
      const at::Tensor all = index.unsqueeze(0).expand({c.heads, n, n});
      scores = scores.add(at::bmm(query, seen(far[1])).gather(2, all))
                   .add(at::bmm(key, seen(far[0])).gather(2, all.transpose(1, 2)).transpose(1, 2));
    }
    scores = scores.mul(c.attention_scale);
    if (!content)
      scores = scores.add(seen(pass.distances).index_select(1, index.flatten()).view({c.heads, n, n}));
    mixed.push_back(at::bmm(at::softmax(scores, -1), heads(v)).transpose(0, 1).reshape({n, -1}));
  }
  return mixed.empty() ? q : at::cat(mixed);
}

}  // namespace rlt::nn
