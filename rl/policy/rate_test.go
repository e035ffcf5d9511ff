package policy

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestAdvisedRate compares with the rates of Tinker's cookbook for Llama-3.1-8B and Qwen3-4B.
func TestAdvisedRate(t *testing.T) {
	for _, c := range []struct {
		family    string
		hidden    int
		low, high float64
	}{{"llama", 4096, 2.86e-4, 2.86e-4}, {"qwen3", 2560, 4.91e-4, 4.91e-4}, {"gemma2", 4096, 2.86e-4, 4.73e-4}, {"gemma2", 576, 5.51e-4, 1.322e-3}} {
		for _, full := range []bool{false, true} {
			low, high := AdvisedRate(&transformers.Config{ModelType: c.family, HiddenSize: c.hidden}, full)
			if full {
				low, high = 10*low, 10*high
			}
			expect.True(t, math.Abs(low/c.low-1) < 0.005 && math.Abs(high/c.high-1) < 0.005, "%+v, full %t: %g to %g", c, full, low, high)
		}
	}
}
