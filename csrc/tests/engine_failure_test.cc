// After a failed step an engine refuses further calls, because its cache may lack what the step planned.
#include <memory>
#include <utility>

#include "engine/cpu/runner.h"
#include "engine_fixture.h"

namespace {

using rlt::engine::CpuRunner;
using rlt::engine::Engine;
using rlt::engine::Item;
using rlt::engine::Pick;
using rlt::engine::Runner;
using rlt::engine::Segment;
using rlt::test::DecoderChoices;
using rlt::test::Random;
using rlt::test::request_of;

bool fails = false;

// The CPU's runner, except that its steps throw while `fails` is set.
class FailingRunner final : public Runner {
 public:
  explicit FailingRunner(const rlt::nn::Transformer& decoder) : runner_(decoder) {}

  const rlt::nn::Config& config() const override { return runner_.config(); }
  std::unique_ptr<Segment> make_segment() const override { return runner_.make_segment(); }
  void refresh() override { runner_.refresh(); }
  void set_adapter(int32_t number, const rlt::nn::Transformer* from) override {
    runner_.set_adapter(number, from);
  }
  void reserve(int64_t tokens, int64_t picks, int64_t positions) override {
    runner_.reserve(tokens, picks, positions);
  }
  void run(std::vector<Item>& items, const std::vector<Pick>& picks) override {
    TORCH_CHECK(!fails, "no memory for this step");
    runner_.run(items, picks);
  }

 private:
  CpuRunner runner_;
};

template <class R>
std::unique_ptr<Runner> make(const rlt::nn::Transformer& decoder) {
  return std::make_unique<R>(decoder);
}

TEST(engine_refuses_to_go_on_after_a_failed_step) {
  rlt::engine::register_runner(c10::DeviceType::CPU, &make<FailingRunner>);
  Random random(19);
  DecoderChoices choices;
  const rlt::nn::Transformer decoder(choices.get(), rlt::test::decoder_weights(choices, random));
  Engine engine(decoder, 2, {});
  rlt::engine::register_runner(c10::DeviceType::CPU, &make<CpuRunner>);
  engine.submit(request_of(2, 6), {1, 2, 3, 4, 5, 6, 7});
  EXPECT(engine.step(4).empty());  // the prompt needs two steps
  fails = true;
  EXPECT_THROWS("no memory for this step", engine.step(4));
  fails = false;
  EXPECT_THROWS("an earlier step of this engine failed", engine.step(4));
  EXPECT_THROWS("an earlier step of this engine failed", engine.submit(request_of(1, 1), {1}));
  engine.cancel(1, 0);
  engine.cancel(1, 1);
  EXPECT_THROWS("an earlier step of this engine failed", engine.refresh());
}

}  // namespace
