// Rows by number. The gradients of a row that is taken more than once are added in a fixed order.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "ops/ordered.h"
#include "ops/packed.h"

namespace rlt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct SelectRows : torch::autograd::Function<SelectRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& index) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({index});
    ctx->saved_data["rows"] = x.size(0);
    return at::index_select(x, 0, index);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    std::vector<int64_t> sizes = grads[0].sizes().vec();
    sizes[0] = ctx->saved_data["rows"].toInt();
    at::Tensor sum = at::zeros(sizes, grads[0].options());
    // On the CPU libtorch adds row after row anyway.
    std::optional<Ordered> ordered;
    if (sum.is_cuda()) ordered.emplace();
    return {sum.index_add_(0, ctx->get_saved_variables()[0], grads[0]), Variable()};
  }
};

}  // namespace

at::Tensor select_rows(const at::Tensor& x, const at::Tensor& index) {
  TORCH_CHECK(x.dim() > 0, "select_rows: a scalar has no rows");
  return SelectRows::apply(x, index);
}

}  // namespace rlt

// Of libtorch's operators on any device.
TORCH_LIBRARY_IMPL(rltrain, CompositeImplicitAutograd, m) { m.impl("select_rows", &rlt::select_rows); }
