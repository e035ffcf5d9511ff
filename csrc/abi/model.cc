#include "abi/model.h"

#include <ATen/core/grad_mode.h>

#include <memory>

#include "abi/abi.h"

namespace {

// Token ids and positions index tables: a bad one must be an error here, not a read outside of them.
void check_range(const at::Tensor& ids, int64_t rows, int64_t limit, const char* what) {
  TORCH_CHECK(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.is_contiguous() && ids.numel() == rows,
              what, ": want ", rows, " int64 values, got ", ids.scalar_type(), " ", ids.sizes());
  const int64_t* values = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    TORCH_CHECK(values[i] >= 0 && values[i] < limit, what, ": ", values[i], " at ", i, " is outside of [0, ",
                limit, ")");
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
    rlt::nn::Encoder encoder(*config, named(names, tensors, n));
    *model = std::make_unique<rlt_model>(rlt_model{std::move(encoder)}).release();
  });
}

rlt_error* rlt_decoder_new(const rlt_decoder_config* config, const char* const* names,
                           const rlt_tensor* tensors, int32_t n, rlt_model** model) {
  return rlt::guard([&] {
    rlt::nn::Decoder decoder(*config, named(names, tensors, n));
    *model = std::make_unique<rlt_model>(rlt_model{std::move(decoder)}).release();
  });
}

rlt_error* rlt_model_adapt(rlt_model* model, const char* layer, rlt_tensor a, rlt_tensor b, double scale) {
  return rlt::guard([&] {
    std::visit([&](auto& net) { net.adapt(layer, rlt::borrow(a), rlt::borrow(b), scale); }, model->net);
  });
}

rlt_error* rlt_model_forward(rlt_model* model, int32_t mode, const rlt_model_input* input,
                             rlt_tensor* hidden) {
  return rlt::guard([&] {
    const at::AutoGradMode grad(mode == RLT_TRAIN);
    const at::Tensor tokens = rlt::borrow(input->tokens), positions = rlt::borrow(input->positions),
                     cu_seqlens = rlt::borrow(input->cu_seqlens);
    std::visit(
        [&](const auto& net) {
          check_range(tokens, tokens.numel(), net.config().vocab_size, "tokens");
          check_range(positions, tokens.numel(), net.config().max_positions, "positions");
        },
        model->net);
    rlt::nn::AdapterPass pass;
    pass.on = input->adapter != 0;
    pass.dropout = input->dropout;
    if (input->dropout > 0) pass.row_keys = rlt::borrow(input->row_keys);
    const bool checkpoint = input->checkpoint != 0;
    const at::Tensor continues = input->continues == 0 ? at::Tensor() : rlt::borrow(input->continues);
    if (const auto* decoder = std::get_if<rlt::nn::Decoder>(&model->net)) {
      *hidden = rlt::give(decoder->forward(tokens, positions, cu_seqlens, continues, pass, checkpoint));
      return;
    }
    TORCH_CHECK(!continues.defined(), "continues: the sequences of an encoder stand alone");
    TORCH_CHECK(!checkpoint,
                "checkpoint: an encoder keeps its activations; only a decoder computes them again");
    *hidden = rlt::give(std::get<rlt::nn::Encoder>(model->net).forward(tokens, positions, cu_seqlens, pass));
  });
}

void rlt_model_free(rlt_model* model) { delete model; }
