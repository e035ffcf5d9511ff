#include "cuda/engine/runner.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "cuda/kernels/stream.h"
#include "engine/shared_weights.h"
#include "ops/send.h"

namespace rlt::cuda {
namespace {

using engine::Item;
using engine::Pick;

PagedSegment& paged(engine::Segment* segment) { return static_cast<PagedSegment&>(*segment); }

int64_t pages_of(int64_t positions) { return (positions + kPage - 1) / kPage; }

// Rounds a number of rows up to a batch size; few sizes need few graphs.
int64_t batch_of(int64_t rows) {
  int64_t size = 1;
  while (size < rows && size < 32) size *= 2;
  return size >= rows ? size : (rows + 31) / 32 * 32;
}

// The same for positions.
int64_t positions_of(int64_t longest) {
  int64_t size = 256;
  while (size < longest) size *= 2;
  return size;
}

// The ranges of rows that use the same adapter, given each row's adapter; equal ones must be adjacent.
std::vector<Range> ranges_of(const std::vector<int32_t>& adapters) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i] == 0) continue;
    const auto row = static_cast<int64_t>(i);
    if (ranges.empty() || ranges.back().adapter != adapters[i]) ranges.push_back({row, row, adapters[i]});
    ranges.back().end = row + 1;
  }
  return ranges;
}

bool long_rope(const nn::Config& c, const engine::Span& span) {
  return std::any_of(c.rope_list.begin(), c.rope_list.end(), [&](const nn::Rope& rope) {
    return rope.switch_length > 0 && span.length > rope.switch_length;
  });
}

}  // namespace

std::unique_ptr<engine::Runner> make_gpu_runner(const nn::Transformer& decoder) {
  return std::make_unique<GpuRunner>(decoder, decoder.embed().device());
}

GpuRunner::GpuRunner(const nn::Transformer& decoder, c10::Device device)
    : network_(decoder, device),
      lane_(device),
      pages_(std::make_shared<Pages>(network_.shape(), device)),
      spare_{pages_->take()} {}

std::unique_ptr<engine::Segment> GpuRunner::make_segment() const {
  return std::make_unique<PagedSegment>(pages_);
}

void GpuRunner::forget() { graphs_.clear(); }

void GpuRunner::refresh() {
  if (!network_.refresh()) forget();
}

void GpuRunner::set_adapter(int32_t number, const nn::Transformer* from) {
  if (from != nullptr) engine::check_shares_weights(network_.decoder(), *from);
  if (!network_.set_adapter(number, from)) forget();
}

void GpuRunner::reserve(int64_t, int64_t picks, int64_t positions) {
  if (script_ != nullptr && picks <= slots_ && positions <= longest_) return;
  forget();
  slots_ = std::max(slots_, batch_of(picks));
  longest_ = std::max(longest_, positions_of(positions));
  // Prefix and tail of a sequence each start a new page. One more place is for padding rows.
  script_ =
      std::make_unique<Script>(slots_, slots_ + 1, slots_ * (pages_of(longest_) + 2) + 1, network_.device());
  const at::TensorOptions on = at::TensorOptions().device(network_.device());
  logits_ = at::empty({slots_, config().vocab_size}, on.dtype(at::kFloat));
  const auto size = static_cast<int64_t>(sizeof(DrawRow));
  draws_ = at::empty({slots_ * size}, on.dtype(at::kByte));
  host_draws_ =
      at::empty({slots_ * size}, at::TensorOptions(at::kByte).pinned_memory(!network_.device().is_cpu()));
}

void GpuRunner::run(std::vector<Item>& items, const std::vector<Pick>& picks) {
  const Lane::Use use(lane_);
  const at::AutoDispatchBelowADInplaceOrView below;
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.span.adapter > b.span.adapter; });
  std::vector<Item*> samples, prompts;
  for (Item& item : items)
    (item.span.tail != nullptr && item.span.count == 1 ? samples : prompts).push_back(&item);
  Drawing by_samples, by_prompts;
  for (size_t i = 0; i < samples.size(); ++i) {
    for (int64_t p = 0; p < samples[i]->picks; ++p) {
      by_samples.picks.push_back(&picks[static_cast<size_t>(samples[i]->first_pick + p)]);
      by_samples.rows.push_back(static_cast<int32_t>(i));
    }
  }
  if (!samples.empty()) draw(by_samples, run_samples(samples), 0);
  if (!prompts.empty()) {
    const at::Tensor logits = run_prompts(prompts, by_prompts, picks);
    draw(by_prompts, logits, static_cast<int64_t>(by_samples.picks.size()));
  }
  hand_out({&by_samples, &by_prompts});
}

// Computes the logits of each sample's next token, [N or more, V].
at::Tensor GpuRunner::run_samples(const std::vector<Item*>& items) {
  const auto n = static_cast<int64_t>(items.size());
  std::vector<int32_t> adapters;
  int64_t longest = 0;
  script_->clear();
  for (const Item* item : items) {
    const engine::Span& span = item->span;
    paged(span.tail).reach(span.position + 1 - span.prefix_length);
    const int32_t place =
        script_->add_place(paged(span.prefix).pages(), span.prefix_length, paged(span.tail).pages());
    script_->add_row({span.tokens[0], static_cast<int32_t>(span.position), place, long_rope(config(), span)});
    adapters.push_back(span.adapter);
    longest = std::max(longest, span.position);
  }
  const int64_t batch = batch_of(n);
  if (batch > n) {
    const int32_t place = script_->add_place({}, 0, spare_);
    for (int64_t i = n; i < batch; ++i) script_->add_row({0, 0, place, 0});
  }
  script_->send();

  Pass pass;
  pass.rows = script_->device_rows();
  pass.places = script_->device_places();
  pass.pages = script_->device_pages();
  pass.count = batch;
  pass.longest = positions_of(longest + 1) - 1;
  pass.ranges = ranges_of(adapters);
  at::Tensor logits = logits_.narrow(0, 0, batch);
  // Batches with several adapters rarely repeat, so they are not recorded.
  const bool alike = adapters.front() == adapters.back();
  if (!alike) {
    compute_samples(pass, logits);
    return logits;
  }
  if (!pass.ranges.empty()) pass.ranges = {{0, batch, adapters.front()}};
  const auto [found, is_new] = graphs_.try_emplace(Key{batch, pass.longest, adapters.front()});
  if (is_new) {
    // The first run initialises the libraries; the second one is recorded.
    compute_samples(pass, logits);
    return logits;
  }
  if (found->second == nullptr) {
    const Graph* beside = nullptr;
    for (const auto& [key, other] : graphs_) beside = beside == nullptr ? other.get() : beside;
    found->second = record(beside, [this, pass, logits]() mutable { compute_samples(pass, logits); });
  }
  found->second->replay();
  return logits;
}

void GpuRunner::compute_samples(const Pass& pass, at::Tensor& logits) const {
  network_.logits_into(logits, network_.last(network_.forward(pass)));
}

// Runs prompts. Returns the logits [N, V], and in drawing which sample uses which row.
at::Tensor GpuRunner::run_prompts(const std::vector<Item*>& items, Drawing& drawing,
                                  const std::vector<Pick>& picks) {
  std::vector<Item*> reading;
  for (Item* item : items) {
    if (item->span.count > 0) reading.push_back(item);
  }
  if (!reading.empty()) read(reading);
  std::vector<at::Tensor> hidden;
  for (const Item* item : items) {
    if (item->picks == 0) continue;
    for (int64_t p = 0; p < item->picks; ++p) {
      drawing.picks.push_back(&picks[static_cast<size_t>(item->first_pick + p)]);
      drawing.rows.push_back(static_cast<int32_t>(hidden.size()));
    }
    hidden.push_back(paged(item->span.prefix).hidden);
  }
  return hidden.empty() ? at::Tensor() : network_.logits(at::cat(hidden));
}

// Runs parts of prompts. A part that ends its prompt stores the last token's hidden state in the segment.
void GpuRunner::read(const std::vector<Item*>& items) {
  int64_t rows = 0, pages = 0;
  for (const Item* item : items) {
    paged(item->span.prefix).reach(item->span.position + item->span.count);
    rows += item->span.count;
    pages += static_cast<int64_t>(paged(item->span.prefix).pages().size());
  }
  const c10::Device device = network_.device();
  Script script(rows, static_cast<int64_t>(items.size()), pages, device);
  std::vector<int32_t> adapters, row_borders{0}, borders{0};
  Pass pass;
  for (const Item* item : items) {
    const engine::Span& s = item->span;
    const int32_t place = script.add_place(paged(s.prefix).pages(), s.prefix_length, {});
    for (int64_t i = 0; i < s.count; ++i) {
      script.add_row({s.tokens[i], static_cast<int32_t>(s.position + i), place, long_rope(config(), s)});
      adapters.push_back(s.adapter);
    }
    row_borders.push_back(row_borders.back() + static_cast<int32_t>(s.count));
    borders.push_back(borders.back() + static_cast<int32_t>(s.position + s.count));
    pass.most_rows = std::max(pass.most_rows, s.count);
    pass.most_positions = std::max(pass.most_positions, s.position + s.count);
  }
  script.send();
  pass.rows = script.device_rows();
  pass.places = script.device_places();
  pass.pages = script.device_pages();
  pass.count = rows;
  pass.longest = pass.most_positions - 1;
  pass.ranges = ranges_of(adapters);
  pass.row_borders = send(row_borders, device);
  pass.borders = send(borders, device);
  pass.positions = borders.back();
  const at::Tensor x = network_.forward(pass);
  std::vector<at::Tensor> last;
  std::vector<Item*> ended;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i]->ends_prompt) continue;
    ended.push_back(items[i]);
    last.push_back(x.narrow(0, row_borders[i + 1] - 1, 1));
  }
  if (ended.empty()) return;
  const at::Tensor hidden = network_.last(at::cat(last));
  for (size_t i = 0; i < ended.size(); ++i) {
    paged(ended[i]->span.prefix).hidden = hidden.narrow(0, static_cast<int64_t>(i), 1);
  }
}

// Samples into draws_, starting at index `first`.
void GpuRunner::draw(const Drawing& drawing, const at::Tensor& logits, int64_t first) {
  const auto n = static_cast<int64_t>(drawing.picks.size());
  if (n == 0) return;
  const c10::Device device = network_.device();
  std::vector<int32_t> seen;
  bool penalised = false;
  at::Tensor rows = at::empty({n * static_cast<int64_t>(sizeof(PickRow))},
                              at::TensorOptions(at::kByte).pinned_memory(!device.is_cpu()));
  auto* const to = reinterpret_cast<PickRow*>(rows.mutable_data_ptr<uint8_t>());
  for (int64_t i = 0; i < n; ++i) {
    const Pick& pick = *drawing.picks[static_cast<size_t>(i)];
    const rlt_sampling& s = *pick.sampling;
    to[i] = {s.repetition_penalty,
             s.temperature,
             s.top_p,
             s.min_p,
             s.top_k,
             pick.key.seed,
             pick.key.stream,
             pick.key.sample,
             pick.key.position,
             drawing.rows[static_cast<size_t>(i)],
             static_cast<int32_t>(seen.size()),
             0,
             0};
    if (s.repetition_penalty == 0 || s.repetition_penalty == 1) continue;
    penalised = true;
    seen.insert(seen.end(), pick.seen->ids().begin(), pick.seen->ids().end());
    to[i].seen_count = static_cast<int32_t>(pick.seen->ids().size());
  }
  const at::Tensor there = rows.to(device, /*non_blocking=*/true);
  const int64_t vocab = config().vocab_size;
  at::Tensor ids, scratch;
  if (penalised) {
    ids = send(seen, device);
    scratch = at::empty({n, vocab}, logits.options());
  }
  sample(current_stream(device), reinterpret_cast<const PickRow*>(there.const_data_ptr<uint8_t>()),
         penalised ? ids.const_data_ptr<int32_t>() : nullptr, logits.const_data_ptr<float>(),
         logits.stride(0), vocab, config().logit_softcap,
         penalised ? scratch.mutable_data_ptr<float>() : nullptr,
         reinterpret_cast<DrawRow*>(draws_.mutable_data_ptr<uint8_t>()) + first, n);
}

// Waits for the device, once per step.
void GpuRunner::hand_out(const std::vector<const Drawing*>& drawings) {
  size_t n = 0;
  for (const Drawing* drawing : drawings) n += drawing->picks.size();
  if (n == 0) return;
  const auto size = static_cast<int64_t>(n * sizeof(DrawRow));
  host_draws_.narrow(0, 0, size).copy_(draws_.narrow(0, 0, size));
  const auto* from = reinterpret_cast<const DrawRow*>(host_draws_.const_data_ptr<uint8_t>());
  for (const Drawing* drawing : drawings) {
    for (const Pick* pick : drawing->picks) {
      *pick->draw = {from->token, from->logprob, from->raw};
      ++from;
    }
  }
}

}  // namespace rlt::cuda
