// The gated delta rule (Yang et al. 2024, §3.3): each value head of a token reads and corrects a matrix that
// forgets. Sequences go in two waves: those that continue none, and then the others from the states that
// those leave.
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/block.h"
#include "ops/block.h"
#include "ops/packed.h"

namespace rlt::nn {
namespace {

constexpr int64_t kChunk = 64;

at::Tensor unit(const at::Tensor& x) { return x.mul(x.square().sum(-1, true).add(1e-6).rsqrt()); }

// Outputs [B, n, T, v] of queries and keys [B, n, T, k], values [B, n, T, v] and the logarithms of decays and
// the rates [B, n, T], T a multiple of chunk. state [B, n, k, v] becomes that after the last token.
at::Tensor run_chunks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& decay,
                      const at::Tensor& rate, int64_t chunk, at::Tensor& state) {
  const auto split = [&](const at::Tensor& x) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape[2] = chunk;
    shape.insert(shape.begin() + 2, x.size(2) / chunk);
    return x.reshape(shape);
  };
  const at::Tensor keys = split(k), sum = split(decay).cumsum(3), grown = sum.exp().unsqueeze(4);
  const at::Tensor rated = keys.mul(split(rate).unsqueeze(4));
  const at::Tensor later = at::ones({chunk, chunk}, at::kBool).triu(1);
  const at::Tensor between = sum.unsqueeze(4)
                                 .sub(sum.unsqueeze(3))
                                 .masked_fill(later, -std::numeric_limits<double>::infinity())
                                 .exp();
  // What each token writes where all that come before it in the chunk have written.
  const at::Tensor system = rated.matmul(keys.transpose(3, 4)).mul(between);
  const auto solve = [&](const at::Tensor& x) {
    return at::linalg_solve_triangular(system, x, false, true, true);
  };
  const at::Tensor fresh = solve(split(v).mul(split(rate).unsqueeze(4))), seen = solve(rated.mul(grown));
  const at::Tensor queries = split(q), own = queries.matmul(keys.transpose(3, 4)).mul(between);
  const at::Tensor asked = queries.mul(grown), left = sum.slice(3, chunk - 1).sub(sum).exp().unsqueeze(4),
                   kept = keys.mul(left).transpose(3, 4), fade = grown.slice(3, chunk - 1);
  std::vector<at::Tensor> made;
  for (int64_t i = 0; i < keys.size(2); ++i) {
    const at::Tensor written = fresh.select(2, i).sub(seen.select(2, i).matmul(state));
    made.push_back(asked.select(2, i).matmul(state).add(own.select(2, i).matmul(written)));
    state = state.mul(fade.select(2, i)).add(kept.select(2, i).matmul(written));
  }
  return at::cat(made, 2);
}

// The sequences of a wave, side by side: rows [B·T] of their tokens, N where there is none.
struct Wave {
  std::vector<int64_t> sequences, rows;
  int64_t length = 0;
};

}  // namespace

at::Tensor delta_rule(const Block& block, const BlockPass& pass, const std::vector<at::Tensor>& wide) {
  const at::Tensor mixed = at::silu(apply_taps(block, pass, wide[0])), rate = wide[2].sigmoid(),
                   decay = at::softplus(wide[3].add(block.dt_bias)).mul(block.a_log.exp()).neg();
  const int64_t rows = mixed.size(0), values = block.a_log.size(0), v = block.delta_norm.size(0),
                heads = pass.config->delta_key_heads, k = delta_key_width(*pass.config, block);
  const int64_t sequences = pass.cu_seqlens.numel() - 1;
  const int32_t* cu = checked_cu_seqlens(pass.cu_seqlens, rows);
  const int32_t* continues =
      checked_continues(pass.continues.defined() ? OptionalTensor(pass.continues) : std::nullopt, sequences);
  Wave waves[2];
  std::vector<int64_t> slot(static_cast<size_t>(sequences)), places(static_cast<size_t>(rows));
  for (int64_t s = 0; s < sequences; ++s) {
    Wave& wave = waves[continues != nullptr && continues[s] >= 0 ? 1 : 0];
    slot[static_cast<size_t>(s)] = static_cast<int64_t>(wave.sequences.size());
    wave.sequences.push_back(s);
    wave.length = std::max<int64_t>(wave.length, cu[s + 1] - cu[s]);
  }
  const at::Tensor all = pad_row(mixed), decays = pad_row(decay), rates = pad_row(rate);
  std::vector<at::Tensor> made;
  at::Tensor states;  // of the first wave
  int64_t before = 0;
  for (Wave& wave : waves) {
    const auto count = static_cast<int64_t>(wave.sequences.size());
    if (count == 0 || wave.length == 0) continue;
    const int64_t chunk = std::min(kChunk, wave.length), length = (wave.length + chunk - 1) / chunk * chunk;
    wave.rows.assign(static_cast<size_t>(count * length), rows);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t s = wave.sequences[static_cast<size_t>(i)];
      for (int64_t row = cu[s]; row < cu[s + 1]; ++row) {
        const int64_t at = i * length + row - cu[s];
        wave.rows[static_cast<size_t>(at)] = row;
        places[static_cast<size_t>(row)] = before + at;
      }
    }
    before += count * length;
    const at::Tensor index = at::tensor(wave.rows, at::kLong);
    const auto by_head = [&](const at::Tensor& x, int64_t first, int64_t n, int64_t each) {
      return select_rows(x, index)
          .narrow(1, first, n * each)
          .reshape({count, length, n, each})
          .transpose(1, 2);
    };
    const auto spread = [&](const at::Tensor& x) { return unit(x).repeat_interleave(values / heads, 1); };
    const at::Tensor q = spread(by_head(all, 0, heads, k)).mul(1 / std::sqrt(static_cast<double>(k)));
    at::Tensor state = at::zeros({count, values, k, v});
    if (continues != nullptr && continues[wave.sequences[0]] >= 0) {
      std::vector<int64_t> from;
      for (const int64_t s : wave.sequences) from.push_back(slot[static_cast<size_t>(continues[s])]);
      state =
          select_rows(states.reshape({states.size(0), -1}), at::tensor(from, at::kLong)).view(state.sizes());
    }
    const at::Tensor out = run_chunks(
        q, spread(by_head(all, heads * k, heads, k)), by_head(all, 2 * heads * k, values, v),
        by_head(decays, 0, values, 1).squeeze(3), by_head(rates, 0, values, 1).squeeze(3), chunk, state);
    if (!states.defined()) states = state;
    made.push_back(out.transpose(1, 2).reshape({count * length, values * v}));
  }
  const at::Tensor read = select_rows(at::cat(made), at::tensor(places, at::kLong)).view({-1, v});
  const at::Tensor normed = std::get<0>(rms_norm(read, block.delta_norm, pass.config->norm_eps, false));
  return normed.view({rows, values * v}).mul(at::silu(wide[1]));
}

}  // namespace rlt::nn
