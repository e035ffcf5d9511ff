// Runs the engine on a GPU. The running samples of a step form one batch, padded to one of a few sizes, each
// recorded as a graph; prompts form another. Sampling is on the device too: a step copies numbers to the
// device once and back once.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "cuda/engine/graph.h"
#include "cuda/engine/network.h"
#include "cuda/engine/pages.h"
#include "engine/runner.h"

namespace rlt::cuda {

// Describes the rows of a pass to the device; filled on the host and copied at once.
class Script {
 public:
  Script(int64_t rows, int64_t places, int64_t pages, c10::Device device);

  void clear();
  // Adds a sequence with the pages of its prefix and its tail; returns its index.
  int32_t add_place(const std::vector<void*>& prefix, int64_t prefix_length, const std::vector<void*>& tail);
  void add_row(const Row& row);
  void send();

  // Pointers to the copies on the device.
  const Row* device_rows() const;
  const Place* device_places() const;
  void* const* device_pages() const;

 private:
  int64_t rows_, places_, pages_;  // capacities
  int64_t row_count_ = 0, place_count_ = 0, page_count_ = 0;
  at::Tensor host_, there_;  // rows, places, pages
};

class GpuRunner : public engine::Runner {
 public:
  GpuRunner(const nn::Transformer& decoder, c10::Device device);

  const nn::Config& config() const override { return network_.config(); }
  std::unique_ptr<engine::Segment> make_segment() const override;
  void refresh() override;
  void set_adapter(int32_t number, const nn::Transformer* from) override;
  void reserve(int64_t tokens, int64_t picks, int64_t positions) override;
  void run(std::vector<engine::Item>& items, const std::vector<engine::Pick>& picks) override;

 private:
  // Identifies a graph: number of rows, bound of the positions, adapter.
  using Key = std::tuple<int64_t, int64_t, int32_t>;
  // Samples to take, and the row of logits of each.
  struct Drawing {
    std::vector<const engine::Pick*> picks;
    std::vector<int32_t> rows;
  };

  void forget();
  at::Tensor run_samples(const std::vector<engine::Item*>& items);
  void compute_samples(const Pass& pass, at::Tensor& logits) const;
  at::Tensor run_prompts(const std::vector<engine::Item*>& items, Drawing& drawing,
                         const std::vector<engine::Pick>& picks);
  void read(const std::vector<engine::Item*>& items);
  void draw(const Drawing& drawing, const at::Tensor& logits, int64_t first);
  void hand_out(const std::vector<const Drawing*>& drawings);

  Network network_;
  Lane lane_;
  std::shared_ptr<Pages> pages_;
  std::vector<void*> spare_;  // the page of padding rows
  int64_t slots_ = 0, longest_ = 0;
  std::unique_ptr<Script> script_;
  at::Tensor logits_;  // [rows of the largest batch, V]
  at::Tensor draws_, host_draws_;
  std::map<Key, std::unique_ptr<Graph>> graphs_;  // null: ran once; will be recorded next time
};

// Makes a runner on the device of the decoder's weights.
std::unique_ptr<engine::Runner> make_gpu_runner(const nn::Transformer& decoder);

}  // namespace rlt::cuda
