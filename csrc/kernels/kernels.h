// The inner loops of everything that computes here: products of tiles, and the maths of rows of floats. Each
// exists once and is compiled for each instruction set; the widest that the processor has is chosen when it
// is first asked for.
//
// Each output is reduced in an order of its own that neither the rows beside it nor the number of threads
// change: that is what makes a completion the same bits in any batch.
#pragma once

#include <cstdint>

namespace rlt {

// Columns of a panel. A matrix B [k, n] is held as panels of 16 columns, each [k][16]; an n that does not
// divide is filled up with zeros.
constexpr int64_t kPanel = 16;
// Products of bfloat16 take k in steps of 16 words: rows and panels are filled up with zeros.
constexpr int64_t kStepWords = 16;

enum class Store {
  kSet,       // c = a·b + bias
  kAdd,       // c = c + (a·b + bias)
  kContinue,  // c is where the sum over k starts
};

// A few rows times some panels: c[i][0, 16·panels) from a[i][0, k), where a row begins a stride behind the
// one before.
struct Tile {
  int rows = 0;  // 1 to what the product takes
  const float* a = nullptr;
  int64_t a_stride = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  const void* b = nullptr;
  int64_t k = 0, panels = 0;
  int64_t panel_stride = 0;     // elements from a panel to the next
  int64_t k_stride = kPanel;    // from a row of a panel to the next; F32 only
  const float* bias = nullptr;  // [16·panels] or null
  // Memory to bring into the caches meanwhile: for each panel ahead_step bytes a row of k, at most two cache
  // lines every four rows of F32 or F16 and every eight of BF16, from ahead on for the first and as far
  // behind each other as the panels are; k_stride is kPanel then. Null: what comes next in b.
  const char* ahead = nullptr;
  int64_t ahead_step = 0;
  Store store = Store::kSet;
};

// A way to multiply tiles, and how high they may be.
struct Product {
  void (*multiply)(const Tile&);
  int rows;

  void operator()(const Tile& t) const { multiply(t); }
  explicit operator bool() const { return multiply != nullptr; }
};
constexpr int kMostRows = 32;  // that any product takes

// How a panel is kept in few bits (quant_panels.h): in blocks of k, each with a scale for each of the 16
// outputs and something to add where `adds`, as float16 or float32. w = T(q)·scale·factor + addend. Where
// something is added the product is exact, so one rounding or two are the same.
struct FewBits {
  // T(q) is a signed byte q (q - 128 of a byte if scales are float16 and the layout is by rows), else the
  // value in the table for four bits.
  bool bytes;
  bool adds;
  bool halves;         // scales are float16
  bool counts;         // table[q] = table[0] + q, and table[0] is 0 where something is added
  int64_t values;      // of k that share a scale
  const float* table;  // [16]
  float factor;        // 1: none
  int64_t block;       // bytes of a block
  // Panels that are kept together, 1 or 2, and which of them this is: of each block the scales of both, then
  // 64 bytes of the one and of the other in turns.
  int64_t together, index;
  // Products take w rounded to bfloat16, else as it is in float32. Always where there is multiply_pairs.
  bool rounds = true;
};

// In which order a panel's values lie (quant_panels.h).
enum class FewLayout { kRows, kPairs, kPlain, kBytes };

// A panel in few bits.
struct FewPanel {
  const FewBits* by;
  const uint8_t* blocks;
  int64_t ahead;  // bytes past it to prefetch
};
struct FewProduct {
  void (*multiply)(const Tile&, const FewPanel* panels);
  int rows;      // of a tile, at most
  int together;  // panels that are kept together for it
};

// What a row of logits z adds to a softmax: over its elements, with e = exp(z - peak).
struct Moments {
  float sum = 0, weighted = 0;  // Σ e, Σ e (z - peak)
  int64_t above = 0;            // how many z exceed the threshold
};

// Rows of n floats; results may take the place of the inputs of the same length. Activations are numbered as
// in rltrain.h.
struct Kernels {
  // ---- products ----
  // Panels that a tile of more than one row takes at once, at most.
  int64_t panels_at_once;
  Product multiply_f32;
  // Rows 2i and 2i + 1 of a panel share 16 words: the even row is their low halves.
  Product multiply_bf16;
  Product multiply_f16;
  // Both a and b are words of two bfloat16: c = Σ low(a)·low(b) + high(a)·high(b). k and the strides count
  // words, and k is a multiple of kStepWords. Null where the instruction set has no products of bfloat16.
  Product multiply_pairs;
  // Rounds to the nearest, ties to even.
  void (*round_bf16)(const float* x, uint16_t* y, int64_t n);
  void (*widen_bf16)(const uint16_t* x, float* y, int64_t n);
  void (*widen_f16)(const uint16_t* x, float* y, int64_t n);

  // ---- sums and multiples ----
  // y = f · x
  void (*scale)(const float* x, float f, float* y, int64_t n);
  // y += f · x
  void (*add_scaled)(float f, const float* x, float* y, int64_t n);
  float (*dot)(const float* x, const float* y, int64_t n);
  // The largest of n > 0 values.
  float (*peak)(const float* x, int64_t n);
  // The indices, in order, of values that are at least bound; ids has room for n. Returns how many.
  int64_t (*at_least)(const float* x, int64_t n, float bound, int32_t* ids);

  // ---- norms ----
  // y = x · rstd · (shift + weight); returns rstd = 1/√(mean(x²) + eps).
  float (*rms_norm)(const float* x, const float* weight, float shift, float* y, int64_t n, float eps);
  // The gradient of rms_norm's x.
  void (*rms_norm_backward)(const float* grad, const float* x, const float* weight, float shift, float rstd,
                            float* out, int64_t n);
  // y = (x - mean) · rstd · weight + bias; bias may be null. Returns rstd.
  float (*layer_norm)(const float* x, const float* weight, const float* bias, float* y, int64_t n, float eps,
                      float* mean);
  // The gradient of layer_norm's x.
  void (*layer_norm_backward)(const float* grad, const float* x, const float* weight, float mean, float rstd,
                              float* out, int64_t n);

  // ---- positions, gates ----
  // Turns the pairs (x[j], x[j + half]) by the angles of cos and sign · sin, and copies the rest of n.
  void (*rotate)(const float* x, const float* cos, const float* sin, float sign, float* y, int64_t half,
                 int64_t n);
  // x = activation(x)
  void (*activate)(float* x, int64_t n, int32_t activation);
  // y = activation(gate) · up
  void (*gate)(const float* gate, const float* up, float* y, int64_t n, int32_t activation);
  void (*gate_backward)(const float* grad, const float* gate, const float* up, float* grad_gate,
                        float* grad_up, int64_t n, int32_t activation);
  // y [rows, 16·pairs] = activation(gate) · up from rows of 2·pairs panels, alternately gate and up.
  void (*gate_panels)(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                      int64_t pairs, int32_t activation);
  // y_j = x_j/(1-p) where a hash of (key, layer, j) keeps j, else 0.
  void (*dropout)(const float* x, float* y, int64_t n, int64_t key, int64_t layer, double p);

  // ---- softmax ----
  // x = outer · tanh(inner · x)
  void (*softcap)(float* x, int64_t n, float inner, float outer);
  // d *= 1 - (capped/cap)², the derivative of cap · tanh by what it is taken of.
  void (*softcap_backward)(float* d, const float* capped, int64_t n, float cap);
  // x = exp(factor · (x - peak)), whose largest element is 1; returns the sum.
  float (*softmax)(float* x, int64_t n, float factor, float* peak);
  // x = exp(factor · x - shift)
  void (*exp)(float* x, int64_t n, float factor, float shift);
  // d = factor · p (d - delta), the gradient of softmax before its factor.
  void (*softmax_backward)(float* d, const float* p, int64_t n, float delta, float factor);
  // Σ exp(x - peak)
  double (*sum_exp)(const float* x, int64_t n, float peak);
  // y = exp((x - peak) · factor); sums [⌈n / kSumBlock⌉] are those of its blocks. Returns the sum of all.
  double (*exp_blocks)(const float* x, int64_t n, float peak, float factor, float* y, double* sums);
  // Replaces logits z by exp(z - peak) · (1 - curvature · z²).
  Moments (*moments)(float* z, int64_t n, float peak, float threshold, float curvature);
  // Replaces logits z by -p · (grad_logprob + grad_entropy · (log p + entropy)) · inverse · (1 - curvature ·
  // z²), where log p = z - lse.
  void (*logits_backward)(float* z, int64_t n, float lse, float entropy, float grad_logprob,
                          float grad_entropy, float inverse, float curvature);

  // ---- weights of few bits ----
  // Writes k rows of a panel, a multiple of 32, as multiply_bf16 takes it, or multiply_f32 where nothing is
  // rounded; with FewLayout::kRows, k bfloat16 of each output, a stride apart. Returns the end of the blocks.
  // Prefetches `ahead` bytes past what it reads.
  const uint8_t* (*unpack)(const FewBits& by, const uint8_t* blocks, int64_t k, int64_t ahead, void* rows,
                           int64_t stride);
  FewLayout few_layout;
  // multiply_pairs by panels of few bits, with a [k words][rows], or where there is none of those
  // multiply_bf16 or multiply_f32, with a [k][rows]. Null where that is not faster than unpacking panels.
  FewProduct multiply_few;
};

constexpr int64_t kSumBlock = 256;

// The widest that this processor has, unless use_kernels has chosen others.
const Kernels& kernels();
// The name of their instruction set.
const char* kernels_name();

// What the products do with a tile that has less than one row or more than they take: throws
// std::logic_error.
[[noreturn]] void refuse_tile(int rows, int most);

// The kernels compiled for an instruction set, whether this processor has it or not.
struct InstructionSet {
  const char* name;
  const Kernels* kernels;
  bool runs;
  bool by_name;  // for tests: slow, and never chosen
};
#if defined(__x86_64__)
constexpr int kInstructionSets = 7;
#elif defined(__aarch64__)
constexpr int kInstructionSets = 5;
#else
#error "the kernels are for x86-64 and arm64"
#endif
// All of them: those by name first, the widest last.
const InstructionSet* instruction_sets();
// From now on all threads take those of a set that runs here. Nothing may be computing, and no weights may be
// packed.
void use_kernels(const InstructionSet& set);

// Billions of operations a second of one thread, in float32 and with weights of bfloat16.
struct Speed {
  double f32, bf16;
};
// Multiplies with each set that runs, in turns, for some milliseconds. The shortest of many short products is
// taken, which other work on the machine disturbs least. Sets that do not run are 0.
void measure(Speed (&speeds)[kInstructionSets]);

}  // namespace rlt
