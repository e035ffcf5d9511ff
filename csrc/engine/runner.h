// What a device does for the engine: it keeps keys and values, runs a decoder on tokens and draws the next
// ones. The engine decides what runs; a runner knows nothing of requests and slots.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "nn/transformer.h"
#include "rltrain.h"

namespace rlt::engine {

// The ids that a sequence has met, for the repetition penalty.
class SeenIds {
 public:
  void reset(int64_t vocab_size);
  void add(int32_t id);
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  std::vector<bool> seen_;
  std::vector<int32_t> ids_;
};

// What decides a draw beside the logits; the same key gives the same token in any batch.
struct DrawKey {
  uint64_t seed, stream;
  uint32_t sample, position;
};

// What a draw's token is where there is none.
enum : int32_t { kNotDrawn = -1, kNotFinite = -2 /* the logits are not */ };

struct Draw {
  int32_t token;
  float logprob;  // under the distribution drawn from; 0 where greedy
  float raw;      // log-softmax of the logits
};

// Keys and values of consecutive positions of a sequence, and the hidden state of its last token once that
// has run. Its memory is the device's.
class Segment {
 public:
  virtual ~Segment() = default;
  // Makes room for up to so many positions; what was there is lost.
  virtual void resize(int64_t positions) = 0;

  // Of each position, its experts in the layers that have some.
  std::vector<int16_t> routes;
};

// Consecutive tokens of one sequence. Positions [0, prefix_length) are kept in prefix, later ones in tail;
// those before `position` are there already.
struct Span {
  const int32_t* tokens = nullptr;
  int64_t count = 0, position = 0;
  Segment* prefix = nullptr;
  int64_t prefix_length = 0;
  Segment* tail = nullptr;
  // Of the whole sequence when it is finished: chooses between a rope's short and long table.
  int64_t length = 0;
  int32_t adapter = 0;  // its number, 0 for none
};

// A token to draw.
struct Pick {
  const rlt_sampling* sampling;
  const SeenIds* seen;
  DrawKey key;
  Draw* draw;  // where it goes
};

// A span to run, and what to draw after its last token: picks [first_pick, first_pick + picks) of the step. A
// span without tokens is that of a prompt which has run: it draws from what its prefix keeps.
struct Item {
  Span span;
  int64_t first_pick = 0, picks = 0;
  bool ends_prompt = false;  // prefix keeps the last token's hidden state
};

class Runner {
 public:
  virtual ~Runner() = default;

  virtual const nn::Config& config() const = 0;
  virtual std::unique_ptr<Segment> make_segment() const = 0;
  // Reads the model's own adapter, which is number 1, and weights where they may have changed.
  virtual void refresh() = 0;
  // Makes that of another model on the same weights adapter `number`, or takes that away where from is null.
  // Errors: other weights.
  virtual void set_adapter(int32_t number, const nn::Transformer* from) = 0;
  // Makes room for steps of so many tokens and picks, of sequences with up to so many positions.
  virtual void reserve(int64_t tokens, int64_t picks, int64_t positions) = 0;
  // Runs a step. Which other items are in it changes no draw.
  virtual void run(std::vector<Item>& items, const std::vector<Pick>& picks) = 0;
};

using RunnerFactory = std::unique_ptr<Runner> (*)(const nn::Transformer& decoder);

// Says what makes the runners of decoders whose weights are on such a device.
void register_runner(c10::DeviceType type, RunnerFactory factory);

// Makes a runner; the decoder must outlive it. Errors name what it cannot run.
std::unique_ptr<Runner> make_runner(const nn::Transformer& decoder);

}  // namespace rlt::engine
