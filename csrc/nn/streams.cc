#include "nn/streams.h"

#include <ATen/ops/stack.h>

#include "nn/block.h"

namespace rlt::nn {
namespace {

// x with rows as long as those of like.
at::Tensor match(const at::Tensor& x, const at::Tensor& like) {
  // A row of zeros has no direction in which its length grows: its gradient is 0 instead of NaN.
  const at::Tensor want = like.square().mean(1, true).clamp_min(1e-30).sqrt();
  return x.mul(want).div(x.square().mean(1, true).clamp_min(1e-5).sqrt());
}

// What the streams' weights are linear in, [N, S].
at::Tensor route(const Config& c, const Block& block, const at::Tensor& x) {
  const at::Tensor normed = apply_norm(c, block.streams_norm, x);
  return block.streams_router.forward(normed.mul(1 / static_cast<double>(x.size(1))), {}).tanh();
}

}  // namespace

at::Tensor spread(const Streams& maps, const at::Tensor& x) {
  std::vector<at::Tensor> all{x};
  for (const Linear& map : maps.spread) all.push_back(match(map.forward(x, {}), x));
  return at::stack(all, 1);
}

at::Tensor merge(const Streams& maps, const at::Tensor& streams) {
  const std::vector<at::Tensor> all = streams.unbind(1);
  at::Tensor sum = all[0];
  for (size_t i = 1; i < all.size(); ++i) sum = sum.add(match(maps.merge[i - 1].forward(all[i], {}), all[0]));
  return sum.div(streams.size(1));
}

at::Tensor predict(const Config& c, const Block& block, const at::Tensor& streams) {
  const int64_t count = streams.size(1);
  const at::Tensor weights = block.predict.forward(route(c, block, streams.select(1, 0)), {});
  return streams.add(weights.view({-1, count, count}).matmul(streams));
}

at::Tensor correct(const Config& c, const Block& block, const at::Tensor& predicted, const at::Tensor& y) {
  const at::Tensor weights = block.correct.forward(route(c, block, y), {}).add(1).unsqueeze(2);
  return predicted.add(weights.mul(y.sub(predicted.select(1, 0)).unsqueeze(1)));
}

at::Tensor first_scaled(const Block& block, const at::Tensor& streams) {
  const at::Tensor first = streams.select(1, 0);
  return block.streams_scale.defined() ? first.mul(block.streams_scale) : first;
}

}  // namespace rlt::nn
