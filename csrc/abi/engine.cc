#include "engine/engine.h"

#include <memory>

#include "abi/abi.h"
#include "abi/model.h"

struct rlt_engine {
  rlt::engine::Engine engine;
};

rlt_error* rlt_engine_new(const rlt_model* model, int32_t slots, const int32_t* eos, int32_t n_eos,
                          rlt_engine** engine) {
  return rlt::guard([&] {
    rlt::engine::Engine made(model->net, slots, {eos, eos + n_eos});
    *engine = std::make_unique<rlt_engine>(rlt_engine{std::move(made)}).release();
  });
}

rlt_error* rlt_engine_submit(rlt_engine* engine, const rlt_request* request, const int32_t* prompt, int64_t n,
                             int64_t* id) {
  return rlt::guard([&] { *id = engine->engine.submit(*request, {prompt, prompt + n}); });
}

rlt_error* rlt_engine_step(rlt_engine* engine, int64_t max_tokens, const rlt_event** events, int64_t* n) {
  return rlt::guard([&] {
    const std::vector<rlt_event>& found = engine->engine.step(max_tokens);
    *events = found.data();
    *n = static_cast<int64_t>(found.size());
  });
}

rlt_error* rlt_engine_cancel(rlt_engine* engine, int64_t request, int32_t sample) {
  return rlt::guard([&] { engine->engine.cancel(request, sample); });
}

rlt_error* rlt_engine_refresh(rlt_engine* engine) {
  return rlt::guard([&] { engine->engine.refresh(); });
}

rlt_error* rlt_engine_adapter(rlt_engine* engine, int32_t number, const rlt_model* model) {
  return rlt::guard([&] { engine->engine.set_adapter(number, model == nullptr ? nullptr : &model->net); });
}

void rlt_cuda_runs(void* runner) {
  rlt::engine::register_runner(c10::DeviceType::CUDA, reinterpret_cast<rlt::engine::RunnerFactory>(runner));
}

void rlt_engine_free(rlt_engine* engine) { delete engine; }
