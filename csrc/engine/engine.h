// Continuous batching: samples enter and leave the running batch at any step.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "engine/runner.h"
#include "rltrain.h"

namespace rlt::engine {

class Engine {
 public:
  Engine(const nn::Transformer& decoder, int32_t slots, std::vector<int32_t> eos);

  int64_t submit(const rlt_request& request, std::vector<int32_t> prompt);
  const std::vector<rlt_event>& step(int64_t max_tokens);
  void cancel(int64_t id, int32_t sample);
  void refresh();
  void set_adapter(int32_t number, const nn::Transformer* from);
  // Whether every sample has ended and been reported.
  bool idle() const { return requests_.empty() && cancelled_.empty(); }

 private:
  // A prompt and what its samples share.
  struct Request {
    int64_t id;
    rlt_request options;
    std::vector<int32_t> prompt;
    std::unique_ptr<Segment> prefix;  // once a sample was admitted
    int64_t filled = 0;               // positions of the prompt that prefix holds
    int32_t admitted = 0;             // samples that were given a slot or were cancelled before
    int32_t unfinished = 0;
    std::vector<bool> done;
  };
  // A running sample.
  struct Slot {
    Request* request = nullptr;  // null: free
    int32_t sample = 0, token = -1;
    int64_t generated = 0;
    std::unique_ptr<Segment> tail;
    SeenIds seen;
    Draw draw{kNotDrawn, 0, 0};
  };
  void check_usable() const;
  void admit();
  void plan(int64_t max_tokens);
  Item& add_item(Request& request);
  void add_pick(Item& item, Slot& slot);
  void collect();
  void finish(Request& request, int32_t sample);
  void add_routes(rlt_event& event, const Slot& slot);
  int64_t unfinished() const;

  std::unique_ptr<Runner> runner_;
  std::vector<int32_t> eos_;
  std::vector<Slot> slots_;
  std::deque<std::unique_ptr<Request>> requests_;  // with unfinished samples, in order of submission
  std::vector<Item> items_;
  std::vector<Pick> picks_;
  std::vector<rlt_event> events_, cancelled_;
  std::vector<std::vector<int16_t>> routes_;  // that events_ point to
  std::set<int32_t> adapters_{0, 1};
  bool failed_ = false;  // a step threw: prompts and slots are ahead of what ran
  int64_t next_id_ = 1, longest_ = 0;
};

}  // namespace rlt::engine
