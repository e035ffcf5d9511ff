// The runner of the CPU.
#pragma once

#include <vector>

#include "engine/cpu/network.h"
#include "engine/cpu/sampler.h"
#include "engine/runner.h"

namespace rlt::engine {

class CpuRunner final : public Runner {
 public:
  explicit CpuRunner(const nn::Transformer& decoder) : network_(decoder) {}

  const nn::Config& config() const override { return network_.config(); }
  std::unique_ptr<Segment> make_segment() const override;
  void refresh() override { network_.refresh(); }
  void set_adapter(int32_t number, const nn::Transformer* from) override {
    network_.set_adapter(number, from);
  }
  void reserve(int64_t tokens, int64_t picks, int64_t positions) override;
  void run(std::vector<Item>& items, const std::vector<Pick>& picks) override;

 private:
  // What runs in one pass of the network.
  struct Group {
    Workspace work;
    std::vector<const Item*> outputs;  // whose logits are computed
    std::vector<const Pick*> drawing;
    std::vector<int64_t> logits;    // row of each of drawing
    std::vector<Sampler> samplers;  // for each thread
    int64_t tokens = 0;
  };

  bool small() const;
  size_t deal(const std::vector<Item>& items);
  void run(Group& group, const std::vector<Pick>& picks) const;

  Network network_;
  std::vector<Group> groups_;
};

}  // namespace rlt::engine
