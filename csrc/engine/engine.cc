#include "engine/engine.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace rlt::engine {
namespace {

constexpr int32_t kMostAdapters = 1 << 14;

// Errors name a value that is out of range.
void check(const rlt_sampling& s) {
  TORCH_CHECK(std::isfinite(s.temperature) && s.temperature >= 0, "temperature ", s.temperature,
              " must be a finite number of at least 0 (0 = greedy)");
  TORCH_CHECK(s.top_k >= 0, "top_k ", s.top_k, " must be at least 0 (0 = off)");
  TORCH_CHECK(s.top_p >= 0 && s.top_p <= 1, "top_p ", s.top_p, " must be 0 to 1 (0 and 1 = off)");
  TORCH_CHECK(s.min_p >= 0 && s.min_p <= 1, "min_p ", s.min_p, " must be 0 to 1 (0 = off)");
  TORCH_CHECK(std::isfinite(s.repetition_penalty) && s.repetition_penalty >= 0, "repetition_penalty ",
              s.repetition_penalty, " must be a finite number of at least 0 (0 and 1 = off)");
}

}  // namespace

Engine::Engine(const nn::Transformer& decoder, int32_t slots, std::vector<int32_t> eos)
    : runner_(make_runner(decoder)), eos_(std::move(eos)) {
  TORCH_CHECK(slots > 0, "slots must be positive, got ", slots);
  for (const int32_t id : eos_) {
    TORCH_CHECK(id >= 0 && id < runner_->config().vocab_size, "eos: ", id, " is not in [0, ",
                runner_->config().vocab_size, ")");
  }
  slots_.resize(static_cast<size_t>(slots));
}

// A step that throws leaves prompts marked as run and draws half collected: later tokens would be wrong.
void Engine::check_usable() const {
  TORCH_CHECK(!failed_, "an earlier step of this engine failed: free the engine and make a new one");
}

int64_t Engine::submit(const rlt_request& request, std::vector<int32_t> prompt) {
  check_usable();
  const nn::Config& c = runner_->config();
  TORCH_CHECK(!prompt.empty(), "the prompt is empty: it needs at least one token");
  for (size_t i = 0; i < prompt.size(); ++i) {
    TORCH_CHECK(prompt[i] >= 0 && prompt[i] < c.vocab_size, "prompt: ", prompt[i], " at ", i,
                " is not in [0, ", c.vocab_size, ")");
  }
  TORCH_CHECK(request.samples > 0, "samples must be positive, got ", request.samples);
  TORCH_CHECK(request.max_new > 0, "max_new must be positive, got ", request.max_new);
  const auto length = static_cast<int64_t>(prompt.size());
  TORCH_CHECK(request.max_new <= c.max_positions - length, "a prompt of ", length, " tokens and max_new ",
              request.max_new, " exceed the model's ", c.max_positions, " positions");
  TORCH_CHECK(adapters_.count(request.adapter) > 0, "there is no adapter ", request.adapter);
  check(request.sampling);
  auto made = std::make_unique<Request>();
  made->id = next_id_++;
  made->options = request;
  made->prompt = std::move(prompt);
  made->unfinished = request.samples;
  made->done.resize(static_cast<size_t>(request.samples));
  longest_ = std::max(longest_, length + request.max_new);
  requests_.push_back(std::move(made));
  return requests_.back()->id;
}

int64_t Engine::unfinished() const {
  int64_t n = 0;
  for (const auto& request : requests_) n += request->unfinished;
  return n;
}

void Engine::refresh() {
  check_usable();
  TORCH_CHECK(requests_.empty(), unfinished(), " samples have not ended: let them, or cancel them, first");
  runner_->refresh();
}

void Engine::set_adapter(int32_t number, const nn::Transformer* from) {
  TORCH_CHECK(number >= 2 && number <= kMostAdapters, "adapter ", number, " is outside of 2 to ",
              kMostAdapters);
  for (const auto& r : requests_) {
    TORCH_CHECK(r->options.adapter != number, r->unfinished, " samples by adapter ", number,
                " have not ended: let them, or cancel them, first");
  }
  runner_->set_adapter(number, from);
  if (from != nullptr) {
    adapters_.insert(number);
  } else {
    adapters_.erase(number);
  }
}

void Engine::cancel(int64_t id, int32_t sample) {
  TORCH_CHECK(id > 0 && id < next_id_, "no request ", id, ": the last one is ", next_id_ - 1);
  const auto found =
      std::find_if(requests_.begin(), requests_.end(), [&](const auto& r) { return r->id == id; });
  if (found == requests_.end()) return;
  Request& request = **found;
  TORCH_CHECK(sample >= 0 && sample < request.options.samples, "request ", id, " has no sample ", sample,
              " of ", request.options.samples);
  if (request.done[static_cast<size_t>(sample)]) return;
  cancelled_.push_back({id, sample, -1, 0, 0, RLT_CANCELLED, nullptr, 0});
  finish(request, sample);
}

// Frees the sample's slot, and the request with its last sample.
void Engine::finish(Request& request, int32_t sample) {
  request.done[static_cast<size_t>(sample)] = true;
  for (Slot& slot : slots_) {
    if (slot.request == &request && slot.sample == sample) slot.request = nullptr;
  }
  if (--request.unfinished > 0) return;
  requests_.erase(
      std::find_if(requests_.begin(), requests_.end(), [&](const auto& r) { return r.get() == &request; }));
}

const std::vector<rlt_event>& Engine::step(int64_t max_tokens) {
  const auto slots = static_cast<int64_t>(slots_.size());
  TORCH_CHECK(max_tokens >= slots, "max_tokens ", max_tokens, " is less than the engine's ", slots, " slots");
  check_usable();
  events_.clear();
  events_.swap(cancelled_);
  routes_.clear();
  admit();
  runner_->reserve(max_tokens, static_cast<int64_t>(slots_.size()), longest_);
  failed_ = true;
  plan(max_tokens);
  if (!items_.empty()) {
    runner_->run(items_, picks_);
    collect();
  }
  failed_ = false;
  return events_;
}

// Gives free slots to the samples that wait, in order of submission.
void Engine::admit() {
  auto slot = slots_.begin();
  for (const auto& request : requests_) {
    while (request->admitted < request->options.samples) {
      if (request->done[static_cast<size_t>(request->admitted)]) {
        ++request->admitted;
        continue;
      }
      slot = std::find_if(slot, slots_.end(), [](const Slot& s) { return s.request == nullptr; });
      if (slot == slots_.end()) return;
      if (request->prefix == nullptr) {
        request->prefix = runner_->make_segment();
        request->prefix->resize(static_cast<int64_t>(request->prompt.size()));
      }
      slot->request = request.get();
      slot->sample = request->admitted++;
      slot->generated = 0;
      if (slot->tail == nullptr) slot->tail = runner_->make_segment();
      slot->tail->resize(request->options.max_new);
      if (request->options.sampling.repetition_penalty > 0) {
        slot->seen.reset(runner_->config().vocab_size);
        for (const int32_t id : request->prompt) slot->seen.add(id);
      }
    }
  }
}

// Lists what to compute: the next token of each running sample, then prompts while there is room.
void Engine::plan(int64_t max_tokens) {
  items_.clear();
  picks_.clear();
  int64_t room = max_tokens;
  for (Slot& slot : slots_) {
    if (slot.request == nullptr || slot.generated == 0) continue;
    Item& item = add_item(*slot.request);
    item.span.tokens = &slot.token;
    item.span.count = 1;
    item.span.position = item.span.prefix_length + slot.generated - 1;
    item.span.tail = slot.tail.get();
    add_pick(item, slot);
    --room;
  }
  for (const auto& request : requests_) {
    Request& r = *request;
    const auto begins = [&](const Slot& s) { return s.request == &r && s.generated == 0; };
    if (std::none_of(slots_.begin(), slots_.end(), begins)) continue;
    const int64_t left = static_cast<int64_t>(r.prompt.size()) - r.filled, count = std::min(room, left);
    if (count == 0 && left > 0) continue;
    Item& item = add_item(r);
    item.span.tokens = r.prompt.data() + r.filled;
    item.span.count = count;
    item.span.position = r.filled;
    item.ends_prompt = count > 0 && count == left;
    room -= count;
    r.filled += count;
    if (count < left) continue;
    for (Slot& slot : slots_) {
      if (begins(slot)) add_pick(item, slot);
    }
  }
}

Item& Engine::add_item(Request& r) {
  items_.emplace_back();
  Item& item = items_.back();
  item.first_pick = static_cast<int64_t>(picks_.size());
  item.span.prefix = r.prefix.get();
  item.span.prefix_length = static_cast<int64_t>(r.prompt.size());
  item.span.length = item.span.prefix_length + r.options.max_new;
  item.span.adapter = r.options.adapter;
  return item;
}

void Engine::add_pick(Item& item, Slot& slot) {
  const rlt_request& o = slot.request->options;
  const DrawKey key{o.seed, o.stream, static_cast<uint32_t>(slot.sample),
                    static_cast<uint32_t>(slot.generated)};
  picks_.push_back({&o.sampling, &slot.seen, key, &slot.draw});
  ++item.picks;
}

void Engine::add_routes(rlt_event& event, const Slot& slot) {
  const std::vector<int16_t>& prompt = slot.request->prefix->routes;
  if (prompt.empty()) return;
  if (slot.generated == 1) {
    routes_.push_back(prompt);  // which ends with its request
    event.routes = routes_.back().data();
    event.n_routes = static_cast<int64_t>(prompt.size());
    return;
  }
  event.n_routes = static_cast<int64_t>(prompt.size() / slot.request->prompt.size());
  event.routes = slot.tail->routes.data() + (slot.generated - 2) * event.n_routes;
}

// Turns draws into events, in the order of slots, and ends samples.
void Engine::collect() {
  for (Slot& slot : slots_) {
    if (slot.request == nullptr || slot.draw.token == kNotDrawn) continue;
    slot.token = std::exchange(slot.draw.token, kNotDrawn);
    if (slot.token == kNotFinite) {
      Request& r = *slot.request;
      events_.push_back({r.id, slot.sample, -1, 0, 0, RLT_NOT_FINITE, nullptr, 0});
      finish(r, slot.sample);
      continue;
    }
    ++slot.generated;
    Request& r = *slot.request;
    int32_t reason = RLT_GOES_ON;
    if (std::find(eos_.begin(), eos_.end(), slot.token) != eos_.end()) {
      reason = RLT_STOPPED;
    } else if (slot.generated == r.options.max_new) {
      reason = RLT_LENGTH;
    }
    events_.push_back({r.id, slot.sample, slot.token, slot.draw.logprob, slot.draw.raw, reason, nullptr, 0});
    add_routes(events_.back(), slot);
    if (reason != RLT_GOES_ON) {
      finish(r, slot.sample);
    } else if (r.options.sampling.repetition_penalty > 0) {
      slot.seen.add(slot.token);
    }
  }
}

}  // namespace rlt::engine
