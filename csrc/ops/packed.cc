// Checks of what describes a packed batch, for every device's operators.
#include "ops/packed.h"

namespace rlt {

const int32_t* checked_cu_seqlens(const at::Tensor& cu_seqlens, int64_t rows) {
  TORCH_CHECK(cu_seqlens.scalar_type() == at::kInt && cu_seqlens.dim() == 1 && cu_seqlens.numel() >= 1 &&
                  cu_seqlens.is_contiguous() && cu_seqlens.device().is_cpu(),
              "cu_seqlens must be a dense int32 vector of at least one element, got ",
              cu_seqlens.scalar_type(), " ", cu_seqlens.sizes());
  const int32_t* cu = cu_seqlens.const_data_ptr<int32_t>();
  const int64_t sequences = cu_seqlens.numel() - 1;
  TORCH_CHECK(cu[0] == 0 && cu[sequences] == rows, "cu_seqlens must run from 0 to ", rows, ", runs from ",
              cu[0], " to ", cu[sequences]);
  for (int64_t s = 0; s < sequences; ++s) {
    TORCH_CHECK(cu[s] <= cu[s + 1], "cu_seqlens falls from ", cu[s], " to ", cu[s + 1], " at sequence ", s);
  }
  return cu;
}

const int32_t* checked_continues(const std::optional<at::Tensor>& continues, int64_t n) {
  if (!continues.has_value() || !continues->defined()) return nullptr;
  TORCH_CHECK(continues->scalar_type() == at::kInt && continues->dim() == 1 && continues->numel() == n &&
                  continues->is_contiguous() && continues->device().is_cpu(),
              "continues must be a dense int32 vector of ", n, " elements, got ", continues->scalar_type(),
              " ", continues->sizes());
  const int32_t* of = continues->const_data_ptr<int32_t>();
  for (int64_t s = 0; s < n; ++s) {
    TORCH_CHECK(of[s] == -1 || (s > 0 && (of[s] == of[s - 1] || (of[s] == s - 1 && of[s - 1] == -1))),
                "continues: sequence ", s, " cannot continue ", of[s]);
  }
  return of;
}

}  // namespace rlt
