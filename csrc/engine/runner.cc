// Which device's runner a decoder gets.
#include "engine/runner.h"

#include <c10/util/Exception.h>

#include <map>

namespace rlt::engine {
namespace {

std::map<c10::DeviceType, RunnerFactory>& factories() {
  static std::map<c10::DeviceType, RunnerFactory> all;
  return all;
}

}  // namespace

void register_runner(c10::DeviceType type, RunnerFactory factory) { factories()[type] = factory; }

std::unique_ptr<Runner> make_runner(const nn::Transformer& decoder) {
  const char* const why = decoder.config().why_mute();
  TORCH_CHECK(*why == 0, why);
  const auto found = factories().find(decoder.embed().device().type());
  TORCH_CHECK(found != factories().end(), "nothing generates on ", decoder.embed().device());
  return found->second(decoder);
}

}  // namespace rlt::engine
