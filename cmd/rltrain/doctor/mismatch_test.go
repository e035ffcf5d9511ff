package doctor

import (
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestSamplerAndTrainingAgree up to the rounding of fp32, or of bf16 if the processor multiplies in it.
func TestSamplerAndTrainingAgree(t *testing.T) {
	torchtest.NoLeaks(t)
	for _, limit := range []struct {
		dtype torch.DType
		mismatch
	}{{torch.F32, mismatch{1e-5, 1e-4}}, {torch.BF16, mismatch{2e-3, 2e-2}}} {
		found := must.Get(measureMismatch(limit.dtype))(t)
		if found.mean > limit.mean || found.most > limit.most || found.most == 0 {
			t.Errorf("%v: %v", limit.dtype, found)
		}
	}
}
