#include "engine/engine.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace rlt::engine {
namespace {

// Weights up to this size are run over once for each thread, on a share of the sequences, without a
// rendezvous of threads at every layer; larger ones are too slow to read twice.
constexpr int64_t kSmallModel = 16 << 20;

}  // namespace

Engine::Engine(const nn::Decoder& decoder, int32_t slots, std::vector<int32_t> eos)
    : network_(decoder), eos_(std::move(eos)) {
  TORCH_CHECK(slots > 0, "slots must be positive, got ", slots);
  for (const int32_t id : eos_) {
    TORCH_CHECK(id >= 0 && id < network_.config().vocab_size, "eos: ", id, " is outside of [0, ",
                network_.config().vocab_size, ")");
  }
  slots_.resize(static_cast<size_t>(slots));
}

int64_t Engine::submit(const rlt_request& request, std::vector<int32_t> prompt) {
  const nn::DecoderConfig& c = network_.config();
  TORCH_CHECK(!prompt.empty(), "the prompt is empty: it needs at least one token");
  for (size_t i = 0; i < prompt.size(); ++i) {
    TORCH_CHECK(prompt[i] >= 0 && prompt[i] < c.vocab_size, "prompt: ", prompt[i], " at ", i,
                " is outside of [0, ", c.vocab_size, ")");
  }
  TORCH_CHECK(request.samples > 0, "samples must be positive, got ", request.samples);
  TORCH_CHECK(request.max_new > 0, "max_new must be positive, got ", request.max_new);
  const auto length = static_cast<int64_t>(prompt.size());
  TORCH_CHECK(request.max_new <= c.max_positions - length, "a prompt of ", length, " tokens and max_new ",
              request.max_new, " exceed the model's ", c.max_positions, " positions");
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
  TORCH_CHECK(requests_.empty(), unfinished(), " samples have not ended: let them, or cancel them, first");
  network_.refresh();
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
  cancelled_.push_back({id, sample, -1, 0, 0, RLT_CANCELLED});
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
  events_.clear();
  events_.swap(cancelled_);
  admit();
  reserve(max_tokens);
  plan(max_tokens);
  if (items_.empty()) return events_;
  deal();
  if (running_groups_ == 1) {
    run(groups_[0]);
  } else {
    at::parallel_for(0, static_cast<int64_t>(running_groups_), 1, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) run(groups_[static_cast<size_t>(g)]);
    });
  }
  collect();
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
      if (request->hidden.empty()) {
        request->prefix.resize(network_.cache_shape(), static_cast<int64_t>(request->prompt.size()));
        request->hidden.resize(static_cast<size_t>(network_.config().hidden_size));
      }
      slot->request = request.get();
      slot->sample = request->admitted++;
      slot->generated = 0;
      slot->tail.resize(network_.cache_shape(), request->options.max_new);
      if (request->options.sampling.repetition_penalty > 0) {
        slot->seen.reset(network_.config().vocab_size);
        for (const int32_t id : request->prompt) slot->seen.add(id);
      }
    }
  }
}

void Engine::reserve(int64_t max_tokens) {
  const auto threads = static_cast<size_t>(at::get_num_threads());
  if (groups_.size() < threads) groups_.resize(threads);
  const bool small = network_.bytes() <= kSmallModel;
  for (size_t g = 0; g < (small ? threads : 1); ++g) {
    network_.reserve(groups_[g].work, max_tokens, static_cast<int64_t>(slots_.size()), longest_);
    if (groups_[g].samplers.size() < threads) groups_[g].samplers.resize(threads);
  }
  items_.reserve(2 * slots_.size());
}

// Lists what to compute: the next token of each running sample, then prompts while there is room.
void Engine::plan(int64_t max_tokens) {
  items_.clear();
  int64_t room = max_tokens;
  for (Slot& slot : slots_) {
    if (slot.request == nullptr || slot.generated == 0) continue;
    Request& r = *slot.request;
    Item item{{}, {&r, &slot}, true};
    const auto prompt = static_cast<int64_t>(r.prompt.size());
    item.span.tokens = &slot.token;
    item.span.count = 1;
    item.span.position = prompt + slot.generated - 1;
    item.span.tail = &slot.tail;
    items_.push_back(item);
    --room;
  }
  for (const auto& request : requests_) {
    Request& r = *request;
    const bool begins = std::any_of(slots_.begin(), slots_.end(),
                                    [&](const Slot& s) { return s.request == &r && s.generated == 0; });
    if (!begins) continue;
    const auto prompt = static_cast<int64_t>(r.prompt.size());
    Item item{{}, {&r, nullptr}, true};
    item.span.tokens = r.prompt.data() + r.filled;
    item.span.count = std::min(room, prompt - r.filled);
    item.span.position = r.filled;
    room -= item.span.count;
    r.filled += item.span.count;
    item.wanted = r.filled == prompt;
    if (item.span.count > 0 || item.wanted) items_.push_back(item);
  }
  for (Item& item : items_) {
    const Request& r = *item.output.request;
    item.span.prefix = &item.output.request->prefix;
    item.span.prefix_length = static_cast<int64_t>(r.prompt.size());
    item.span.length = item.span.prefix_length + r.options.max_new;
    item.span.adapter = r.options.adapter != 0;
  }
}

// Deals items out to groups: one for each thread where the model is small and the shares come out even.
void Engine::deal() {
  // Rows with the adapter come first in a pass.
  std::stable_partition(items_.begin(), items_.end(), [](const Item& i) { return i.span.adapter; });
  const auto threads = static_cast<size_t>(at::get_num_threads());
  running_groups_ = network_.bytes() <= kSmallModel ? std::min(threads, items_.size()) : 1;
  for (;;) {
    int64_t total = 0, most = 0;
    for (size_t g = 0; g < running_groups_; ++g) {
      groups_[g].work.spans.clear();
      groups_[g].outputs.clear();
      groups_[g].tokens = 0;
    }
    for (Item& item : items_) {
      Group& group =
          *std::min_element(groups_.begin(), groups_.begin() + static_cast<int64_t>(running_groups_),
                            [](const Group& a, const Group& b) { return a.tokens < b.tokens; });
      if (item.wanted) {
        item.span.out = static_cast<int64_t>(group.outputs.size());
        group.outputs.push_back(item.output);
      }
      if (item.span.count > 0) group.work.spans.push_back(item.span);
      // A sample's draw costs about as much as a token.
      const int64_t cost = item.span.count + (item.wanted ? 1 : 0);
      group.tokens += cost;
      total += cost;
      most = std::max(most, group.tokens);
    }
    if (2 * most * static_cast<int64_t>(running_groups_) <= 3 * total || running_groups_ == 1) return;
    running_groups_ = 1;
  }
}

void Engine::run(Group& g) {
  Workspace& w = g.work;
  const int64_t width = network_.config().hidden_size, vocab = network_.config().vocab_size;
  if (!w.spans.empty()) network_.forward(w);
  g.drawing.clear();
  g.logits.clear();
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    const auto [request, slot] = g.outputs[i];
    const auto row = static_cast<int64_t>(i);
    if (slot != nullptr) {
      g.drawing.push_back(slot);
      g.logits.push_back(row);
      continue;
    }
    // Samples that find no slot yet begin later, from the same hidden state.
    float* last = w.last.data() + row * width;
    const bool fresh =
        std::any_of(w.spans.begin(), w.spans.end(), [&](const Span& s) { return s.out == row; });
    if (fresh) {
      std::copy(last, last + width, request->hidden.begin());
    } else {
      std::copy(request->hidden.begin(), request->hidden.end(), last);
    }
    for (Slot& s : slots_) {
      if (s.request != request || s.generated > 0) continue;
      g.drawing.push_back(&s);
      g.logits.push_back(row);
    }
  }
  if (g.outputs.empty()) return;
  network_.head(w, static_cast<int64_t>(g.outputs.size()));
  const auto draws = static_cast<int64_t>(g.drawing.size());
  at::parallel_for(0, draws, std::max<int64_t>(1, (1 << 13) / vocab), [&](int64_t begin, int64_t end) {
    Sampler& sampler = g.samplers[static_cast<size_t>(at::get_thread_num())];
    for (int64_t i = begin; i < end; ++i) {
      Slot& slot = *g.drawing[static_cast<size_t>(i)];
      const rlt_request& o = slot.request->options;
      const DrawKey key{o.seed, o.stream, static_cast<uint32_t>(slot.sample),
                        static_cast<uint32_t>(slot.generated)};
      const float* logits = w.logits.data() + g.logits[static_cast<size_t>(i)] * network_.logits_stride();
      slot.draw = sampler.draw(logits, vocab, o.sampling, slot.seen, key);
    }
  });
}

// Turns draws into events, in the order of slots, and ends samples.
void Engine::collect() {
  for (size_t g = 0; g < running_groups_; ++g) {
    for (Slot* slot : groups_[g].drawing) {
      slot->token = slot->draw.token;
      ++slot->generated;
    }
  }
  for (Slot& slot : slots_) {
    if (slot.request == nullptr || slot.draw.token < 0) continue;
    Request& r = *slot.request;
    int32_t reason = RLT_GOES_ON;
    if (std::find(eos_.begin(), eos_.end(), slot.token) != eos_.end()) {
      reason = RLT_STOPPED;
    } else if (slot.generated == r.options.max_new) {
      reason = RLT_LENGTH;
    }
    events_.push_back({r.id, slot.sample, slot.token, slot.draw.logprob, slot.draw.raw, reason});
    slot.draw.token = -1;
    if (reason != RLT_GOES_ON) {
      finish(r, slot.sample);
    } else if (r.options.sampling.repetition_penalty > 0) {
      slot.seen.add(slot.token);
    }
  }
}

}  // namespace rlt::engine
