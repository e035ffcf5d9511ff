#include "engine/cpu/runner.h"

#include <algorithm>

#include "kernels/parallel.h"

namespace rlt::engine {
namespace {

[[maybe_unused]] const bool registered = [] {
  register_runner(c10::DeviceType::CPU, [](const nn::Transformer& decoder) -> std::unique_ptr<Runner> {
    return std::make_unique<CpuRunner>(decoder);
  });
  return true;
}();

}  // namespace

std::unique_ptr<Segment> CpuRunner::make_segment() const {
  return std::make_unique<CpuSegment>(network_.cache_shape());
}

// Weights up to this size are run over once for each thread, on a share of the sequences, without a
// rendezvous of threads at every layer; larger ones are too slow to read twice.
bool CpuRunner::small() const { return network_.bytes() <= 16 << 20; }

void CpuRunner::reserve(int64_t tokens, int64_t picks, int64_t positions) {
  const auto threads = static_cast<size_t>(thread_count());
  if (groups_.size() < threads) groups_.resize(threads);
  for (size_t g = 0; g < (small() ? threads : 1); ++g) {
    network_.reserve(groups_[g].work, tokens, picks, positions);
    if (groups_[g].samplers.size() < threads) groups_[g].samplers.resize(threads);
  }
}

void CpuRunner::run(std::vector<Item>& items, const std::vector<Pick>& picks) {
  // Rows of an adapter lie together in a pass, those of none at its end.
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.span.adapter > b.span.adapter; });
  const size_t running = deal(items);
  if (running == 1) return run(groups_[0], picks);
  parallel_for(0, static_cast<int64_t>(running), 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) run(groups_[static_cast<size_t>(g)], picks);
  });
}

// Deals items out to groups: one for each thread where the model is small and the shares come out even.
// Returns how many there are.
size_t CpuRunner::deal(const std::vector<Item>& items) {
  size_t running = small() ? std::min(static_cast<size_t>(thread_count()), items.size()) : 1;
  for (;;) {
    int64_t total = 0, most = 0;
    for (size_t g = 0; g < running; ++g) {
      groups_[g].work.spans.clear();
      groups_[g].outputs.clear();
      groups_[g].tokens = 0;
    }
    for (const Item& item : items) {
      Group& group = *std::min_element(groups_.begin(), groups_.begin() + static_cast<int64_t>(running),
                                       [](const Group& a, const Group& b) { return a.tokens < b.tokens; });
      Work work{item.span};
      // A sample's draw costs about as much as a token.
      const int64_t cost = item.span.count + (item.picks > 0 || item.ends_prompt ? 1 : 0);
      if (cost > item.span.count) {
        work.out = static_cast<int64_t>(group.outputs.size());
        group.outputs.push_back(&item);
      }
      if (item.span.count > 0) group.work.spans.push_back(work);
      group.tokens += cost;
      total += cost;
      most = std::max(most, group.tokens);
    }
    if (2 * most * static_cast<int64_t>(running) <= 3 * total || running == 1) return running;
    running = 1;
  }
}

void CpuRunner::run(Group& g, const std::vector<Pick>& picks) const {
  Workspace& w = g.work;
  const int64_t width = config().hidden_size, vocab = config().vocab_size;
  if (!w.spans.empty()) network_.forward(w);
  g.drawing.clear();
  g.logits.clear();
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    const Item& item = *g.outputs[i];
    const auto row = static_cast<int64_t>(i);
    // Samples that find no slot yet begin later, from the same hidden state.
    float* last = w.last.data() + row * width;
    if (item.ends_prompt) {
      kept(item.span.prefix).hidden.assign(last, last + width);
    } else if (item.span.count == 0) {
      const std::vector<float>& hidden = kept(item.span.prefix).hidden;
      std::copy(hidden.begin(), hidden.end(), last);
    }
    for (int64_t p = item.first_pick; p < item.first_pick + item.picks; ++p) {
      g.drawing.push_back(&picks[static_cast<size_t>(p)]);
      g.logits.push_back(row);
    }
  }
  if (g.outputs.empty()) return;
  network_.head(w, static_cast<int64_t>(g.outputs.size()));
  const auto draws = static_cast<int64_t>(g.drawing.size());
  parallel_for(0, draws, std::max<int64_t>(1, (1 << 13) / vocab), [&](int64_t begin, int64_t end) {
    Sampler& sampler = g.samplers[static_cast<size_t>(thread_number())];
    for (int64_t i = begin; i < end; ++i) {
      const Pick& pick = *g.drawing[static_cast<size_t>(i)];
      const float* logits = w.logits.data() + g.logits[static_cast<size_t>(i)] * network_.logits_stride();
      *pick.draw = sampler.draw(logits, vocab, *pick.sampling, *pick.seen, pick.key);
    }
  });
}

}  // namespace rlt::engine
