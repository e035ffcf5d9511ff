// Reference loops for the generation kernels (cuda/kernels/kernels.h), on host memory, so that the GPU engine
// can be tested without a GPU.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "engine/cpu/sampler.h"

namespace rlt::cuda {
namespace {

float get(const void* data, Type type, int64_t i) {
  switch (type) {
    case Type::kBF16:
      return static_cast<const c10::BFloat16*>(data)[i];
    case Type::kF16:
      return static_cast<const c10::Half*>(data)[i];
    default:
      return static_cast<const float*>(data)[i];
  }
}

void set(void* data, Type type, int64_t i, float value) {
  switch (type) {
    case Type::kBF16:
      static_cast<c10::BFloat16*>(data)[i] = value;
      return;
    case Type::kF16:
      static_cast<c10::Half*>(data)[i] = value;
      return;
    default:
      static_cast<float*>(data)[i] = value;
  }
}

// Page of a position's key (side 0) or value (side 1) of a head, and the index of its first element.
struct Slot {
  void* page;
  int64_t begin;
};

Slot find(const Place& place, void* const* pages, const Shape& s, int64_t layer, int side, int64_t head,
          int64_t position) {
  const bool in_prefix = position < place.prefix_length;
  const int64_t at = in_prefix ? position : position - place.prefix_length;
  const int64_t page = (in_prefix ? place.prefix_page : place.tail_page) + at / kPage;
  return {pages[page], (((layer * 2 + side) * s.kv_heads + head) * kPage + at % kPage) * s.head_dim};
}

void norm(std::vector<float>& x, const float* weight, bool plus_one, double eps) {
  if (weight == nullptr) return;
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  const double rstd = 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
  for (size_t j = 0; j < x.size(); ++j) {
    x[j] = static_cast<float>(x[j] * rstd * (static_cast<double>(weight[j]) + plus_one));
  }
}

void turn(std::vector<float>& x, const Row& row, const Angles& angles) {
  const bool is_long = row.long_rope != 0 && angles.long_inv_freq != nullptr;
  const double* frequencies = is_long ? angles.long_inv_freq : angles.inv_freq;
  const double factor = is_long ? angles.long_factor : angles.factor;
  for (int64_t j = 0; j < angles.half; ++j) {
    const double angle = static_cast<double>(row.position) * frequencies[j];
    const auto c = static_cast<float>(factor * std::cos(angle));
    const auto s = static_cast<float>(factor * std::sin(angle));
    float &a = x[static_cast<size_t>(j)], &b = x[static_cast<size_t>(j + angles.half)];
    const float turned = a * c - b * s;
    b = b * c + a * s;
    a = turned;
  }
}

float capped(float x, double softcap) {
  return softcap == 0 ? x : static_cast<float>(softcap * std::tanh(x / softcap));
}

}  // namespace

void embed(Stream, const Row* rows, const void* table, Type table_type, const float* positions, float scale,
           float* x, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      float value = get(table, table_type, rows[i].token * width + j) * scale;
      if (positions != nullptr) value += positions[rows[i].position * width + j];
      x[i * width + j] = value;
    }
  }
}

void store(Stream, const Row* rows, const Place* places, void* const* pages, const float* qkv, Qkv layout,
           Angles angles, const float* q_norm, const float* k_norm, bool plus_one, double eps, Shape shape,
           int64_t layer, void* queries, int64_t count) {
  const int64_t d = shape.head_dim;
  for (int64_t i = 0; i < count; ++i) {
    const Row& row = rows[i];
    const float* base = qkv + i * layout.stride;
    for (int64_t h = 0; h < shape.heads; ++h) {
      const float* q = base + layout.q + h * layout.q_step;
      std::vector<float> x(q, q + d);
      norm(x, q_norm, plus_one, eps);
      turn(x, row, angles);
      for (int64_t j = 0; j < d; ++j) {
        set(queries, shape.type, (i * shape.heads + h) * d + j, x[static_cast<size_t>(j)]);
      }
    }
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      const float *k = base + layout.k + h * layout.kv_step, *v = base + layout.v + h * layout.kv_step;
      std::vector<float> x(k, k + d);
      norm(x, k_norm, plus_one, eps);
      turn(x, row, angles);
      const Slot key = find(places[row.place], pages, shape, layer, 0, h, row.position);
      const Slot value = find(places[row.place], pages, shape, layer, 1, h, row.position);
      for (int64_t j = 0; j < d; ++j) {
        set(key.page, shape.type, key.begin + j, x[static_cast<size_t>(j)]);
        set(value.page, shape.type, value.begin + j, v[j]);
      }
    }
  }
}

void decode_attention(Stream, const Row* rows, const Place* places, void* const* pages, const void* queries,
                      double scale, int64_t window, double softcap, Shape shape, int64_t layer, void* out,
                      int64_t count, int64_t longest, void*) {
  const int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
  std::vector<double> weights(static_cast<size_t>(longest + 1)), sums(static_cast<size_t>(d));
  for (int64_t task = 0; task < count * shape.heads; ++task) {
    const Row& row = rows[task / shape.heads];
    const Place& place = places[row.place];
    const int64_t head = task % shape.heads / group, end = row.position + 1;
    const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, end - window);
    double peak = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t p = begin; p < end; ++p) {
      const Slot key = find(place, pages, shape, layer, 0, head, p);
      double score = 0;
      for (int64_t j = 0; j < d; ++j) {
        score += static_cast<double>(get(queries, shape.type, task * d + j)) *
                 get(key.page, shape.type, key.begin + j);
      }
      score *= scale;
      if (softcap != 0) score = softcap * std::tanh(score / softcap);
      weights[static_cast<size_t>(p)] = score;
      peak = std::max(peak, score);
    }
    std::fill(sums.begin(), sums.end(), 0);
    for (int64_t p = begin; p < end; ++p) {
      const Slot value = find(place, pages, shape, layer, 1, head, p);
      const double weight = std::exp(weights[static_cast<size_t>(p)] - peak);
      total += weight;
      for (int64_t j = 0; j < d; ++j) {
        sums[static_cast<size_t>(j)] += weight * get(value.page, shape.type, value.begin + j);
      }
    }
    for (int64_t j = 0; j < d; ++j) {
      set(out, shape.type, task * d + j, static_cast<float>(sums[static_cast<size_t>(j)] / total));
    }
  }
}

int64_t decode_room(Shape, int64_t, int64_t) { return 0; }

void sample(Stream, const PickRow* picks, const int32_t* seen, const float* logits, int64_t stride,
            int64_t vocab, double softcap, float*, DrawRow* draws, int64_t count) {
  engine::Sampler sampler;
  engine::SeenIds met;
  std::vector<float> row(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < count; ++i) {
    const PickRow& pick = picks[i];
    for (int64_t j = 0; j < vocab; ++j) {
      row[static_cast<size_t>(j)] = capped(logits[pick.logits * stride + j], softcap);
    }
    met.reset(vocab);
    for (int32_t j = 0; j < pick.seen_count; ++j) met.add(seen[pick.seen + j]);
    const rlt_sampling sampling{pick.repetition_penalty, pick.temperature, pick.top_k, pick.top_p,
                                pick.min_p};
    const engine::Draw draw =
        sampler.draw(row.data(), vocab, sampling, met, {pick.seed, pick.stream, pick.sample, pick.position});
    draws[i] = {draw.token, draw.logprob, draw.raw};
  }
}

}  // namespace rlt::cuda
