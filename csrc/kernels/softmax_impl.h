// Softmax and what leads to and from it; part of set_impl.h, inside its namespace.

// What fills up a vector of logits: exp gives 0 for it, and it exceeds no threshold.
constexpr float kNothing = -__builtin_inff();

void softcap(float* x, int64_t n, float inner, float outer) {
  for (int64_t i = 0; i < n; i += kLanes) {
    store(x + i, n - i, outer * tanh_of(inner * load(x + i, n - i)));
  }
}

void softcap_backward(float* d, const float* capped, int64_t n, float cap) {
  const float inverse = 1.0f / cap;
  for (int64_t i = 0; i < n; ++i) {
    const float t = capped[i] * inverse;
    d[i] *= 1.0f - t * t;
  }
}

// y = exp((x - peak) · factor) and its sum; with kKeep false y is left alone.
template <bool kKeep>
RLT_INLINE float exp_sum(const float* x, int64_t n, float top, float factor, float* y) {
  V sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V e = exp_of((vec(x + i) - top) * factor);
    if (kKeep) vec(y + i) = e;
    sums += e;
  }
  if (i < n) {
    V e = exp_of((load(x + i, n - i, top) - top) * factor);
    if (kKeep) store(y + i, n - i, e);
    for (int64_t j = n - i; j < kLanes; ++j) e[j] = 0;
    sums += e;
  }
  return fold_sum(sums);
}

float softmax(float* x, int64_t n, float factor, float* top) {
  *top = peak(x, n);
  return exp_sum<true>(x, n, *top, factor, x);
}

void exp_row(float* x, int64_t n, float factor, float shift) {
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, n - i, exp_of(factor * load(x + i, n - i) - shift));
}

void softmax_backward(float* d, const float* p, int64_t n, float delta, float factor) {
  for (int64_t i = 0; i < n; ++i) d[i] = factor * p[i] * (d[i] - delta);
}

double sum_exp(const float* x, int64_t n, float top) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    sum += exp_sum<false>(x + i, n - i < kSumBlock ? n - i : kSumBlock, top, 1, nullptr);
  }
  return sum;
}

double exp_blocks(const float* x, int64_t n, float top, float factor, float* y, double* sums) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const double block = exp_sum<true>(x + i, n - i < kSumBlock ? n - i : kSumBlock, top, factor, y + i);
    sums[i / kSumBlock] = block;
    sum += block;
  }
  return sum;
}

// Keeps p · log p at 0 where p is: exp is 0 below.
RLT_INLINE V clip_log(V x) { return x < -88.0f ? splat(-88.0f) : x; }

Moments moments(float* z, int64_t n, float top, float threshold, float curvature) {
  V sums = {}, weighted = {};
  I above = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const V x = load(z + i, n - i, kNothing), fall = clip_log(x - top), e = exp_of(fall);
    sums += e;
    weighted += e * fall;
    above -= x > threshold;  // a true comparison is -1
    store(z + i, n - i, curvature > 0 ? e * (1 - curvature * x * x) : e);
  }
  Moments out;
  out.sum = fold_sum(sums);
  out.weighted = fold_sum(weighted);
  for (int j = 0; j < kLanes; ++j) out.above += above[j];
  return out;
}

void logits_backward(float* z, int64_t n, float lse, float entropy, float grad_logprob, float grad_entropy,
                     float inverse, float curvature) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V x = load(z + i, n - i), log_p = clip_log(x - lse);
    const V slope = curvature > 0 ? inverse * (1 - curvature * x * x) : splat(inverse);
    store(z + i, n - i, -exp_of(log_p) * (grad_logprob + grad_entropy * (log_p + entropy)) * slope);
  }
}
