package doctor

import (
	"testing"

	"rltrain/torch"
	"rltrain/torch/torchtest"
)

// TestSamplerAndTrainingAgree: on the CPU to the rounding of fp32, whatever the weights' type.
func TestSamplerAndTrainingAgree(t *testing.T) {
	torchtest.NoLeaks(t)
	for _, dtype := range []torch.DType{torch.F32, torch.BF16} {
		found, err := measureMismatch(dtype)
		if err != nil {
			t.Fatal(err)
		}
		if found.mean > 1e-5 || found.most > 1e-4 || found.most == 0 {
			t.Errorf("%v: %v", dtype, found)
		}
	}
}
