#include "abi/model.h"

#include <ATen/core/grad_mode.h>

#include <memory>

#include "abi/abi.h"

namespace {

// Checks indices here, because the kernels would read outside the embedding tables.
void check_range(const at::Tensor& ids, int64_t rows, int64_t limit, const char* what) {
  TORCH_CHECK(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.is_contiguous() && ids.numel() == rows,
              what, ": want ", rows, " int64 values, got ", ids.scalar_type(), " ", ids.sizes());
  const at::Tensor host = ids.cpu();
  const int64_t* values = host.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    TORCH_CHECK(values[i] >= 0 && values[i] < limit, what, ": ", values[i], " at ", i, " is not in [0, ",
                limit, ")");
  }
}

// Checks experts here likewise.
void check_routes(const at::Tensor& routes, int64_t experts) {
  TORCH_CHECK(routes.scalar_type() == at::kInt && routes.is_contiguous() && routes.is_cpu(),
              "routes: want int32 values, got ", routes.scalar_type(), " ", routes.sizes());
  const int32_t* values = routes.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < routes.numel(); ++i) {
    TORCH_CHECK(values[i] >= -1 && values[i] < experts, "routes: ", values[i], " at ", i, " is not in [-1, ",
                experts, ")");
  }
}

rlt::nn::Weights named(const char* const* names, const rlt_tensor* tensors, int32_t n) {
  rlt::nn::Weights weights;
  for (int32_t i = 0; i < n; ++i) weights.emplace(names[i], rlt::borrow(tensors[i]));
  return weights;
}

}  // namespace

rlt_error* rlt_model_new(const rlt_model_config* config, const char* const* names, const rlt_tensor* tensors,
                         int32_t n, rlt_model** model) {
  return rlt::guard([&] {
    rlt::nn::Transformer net(*config, named(names, tensors, n));
    *model = std::make_unique<rlt_model>(rlt_model{std::move(net)}).release();
  });
}

rlt_error* rlt_model_adapt(rlt_model* model, const char* layer, rlt_tensor a, rlt_tensor b,
                           rlt_tensor magnitude, double scale) {
  return rlt::guard([&] {
    const at::Tensor norms = magnitude != 0 ? rlt::borrow(magnitude) : at::Tensor();
    model->net.adapt(layer, rlt::borrow(a), rlt::borrow(b), scale, norms);
  });
}

rlt_error* rlt_model_forward(rlt_model* model, int32_t mode, const rlt_model_input* input, rlt_tensor* hidden,
                             rlt_tensor* load) {
  return rlt::guard([&] {
    const at::AutoGradMode grad(mode == RLT_TRAIN);
    rlt::nn::Batch batch;
    batch.tokens = rlt::borrow(input->tokens);
    batch.positions = rlt::borrow(input->positions);
    batch.cu_seqlens = rlt::borrow(input->cu_seqlens);
    if (input->continues != 0) batch.continues = rlt::borrow(input->continues);
    if (input->rows != 0) batch.rows = rlt::borrow(input->rows);
    const int64_t n = batch.tokens.numel();
    const c10::Device device = model->net.embed().device();
    check_range(batch.tokens, n, model->net.config().vocab_size, "tokens");
    check_range(batch.positions, n, model->net.positions_left(), "positions");
    if (batch.rows.defined()) check_range(batch.rows, batch.rows.numel(), n, "rows");
    if (input->noise != 0) {
      batch.noise = rlt::borrow(input->noise);
      TORCH_CHECK(batch.noise.sizes() == c10::IntArrayRef({n, model->net.embed().size(1)}), "noise: want [",
                  n, ", ", model->net.embed().size(1), "], got ", batch.noise.sizes());
    }
    if (input->routes != 0) {
      batch.routes = rlt::borrow(input->routes);
      check_routes(batch.routes, model->net.config().experts);
    }
    for (at::Tensor* part : {&batch.tokens, &batch.positions, &batch.rows}) {
      if (part->defined() && !device.is_cpu() && part->is_cpu()) {
        *part = part->pin_memory().to(device, /*non_blocking=*/true);
      }
    }
    rlt::nn::AdapterPass pass;
    pass.on = input->adapter != 0;
    pass.dropout = input->dropout;
    if (input->dropout > 0) pass.row_keys = rlt::borrow(input->row_keys);
    at::Tensor experts;
    *hidden = rlt::give(
        model->net.forward(batch, pass, input->checkpoint != 0, load == nullptr ? nullptr : &experts));
    if (load != nullptr) *load = rlt::give(experts);
  });
}

void rlt_model_free(rlt_model* model) { delete model; }
