package bench

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// small has 2 layers, two query heads of width 4, and one key/value head.
var small = transformers.LlamaShape{Vocab: 10, Hidden: 8, Layers: 2, Heads: 2, KVHeads: 1, Intermediate: 16}

func TestStepBytes(t *testing.T) {
	const (
		layer = 8*8 + 2*8*4 + 8*8 + 3*8*16 // queries, keys and values, output, MLP
		cache = 2 * 4                      // per token and layer
	)
	got, want := stepBytes(small, 2, 2, torch.BF16, 3, 5), 2.0*(2*layer+10*8+2*cache*3*5)
	expect.True(t, got == want, "got %v bytes, want %v", got, want)
	expect.Same(t, 2*stepBytes(small, 2, 2, torch.BF16, 1, 1), stepBytes(small, 4, 4, torch.F32, 1, 1), "in four bytes")
	if got, want := stepBytes(small, 2, 2, torch.BF16, 1, 1)-stepBytes(small, 0.5, 2, torch.BF16, 1, 1), 1.5*2*layer; got != want {
		t.Errorf("layers in four bits save %v bytes, want %v", got, want)
	}
}

func TestStepFLOPs(t *testing.T) {
	layers := 2.0 * (8*8 + 2*8*4 + 8*8 + 3*8*16)
	q := []policy.Sequence{{IDs: make([]int32, 3), Labels: []bool{false, true, true}}}
	attention := 6.0 * 2 * 2 * 8 * (1 + 2 + 3) // six products of 8 features per token pair and layer
	expect.Same(t, 4*layers*3+6*7*3+4*80*2+attention, stepFLOPs(small, 7, q), "stepFLOPs")
	// Twice the length takes more than twice the work: attention is quadratic.
	long := []policy.Sequence{{IDs: make([]int32, 6), Labels: []bool{false, true, true, false, true, true}}}
	got, most := stepFLOPs(small, 7, long), 2*stepFLOPs(small, 7, q)
	expect.True(t, got > most, "got %v for twice the length, want more than %v", got, most)
}

// TestDeviceBenchCounts: rates are work divided by time.
func TestDeviceBenchCounts(t *testing.T) {
	r := must.Get(measureDevice(t.Context(), 1, 1<<12, 32))(t)
	if want := inARow * 2 * 32.0 * 32 * 32 / r.Best / 1e12; math.Abs(r.more["tflop_s"].(float64)/want-1) > 1e-9 {
		t.Errorf("%v TFLOP/s in %v s, want %v", r.more["tflop_s"], r.Best, want)
	}
	expect.True(t, r.more["copy_gb_s"].(float64) > 0 && r.Device == "cpu" && r.more["product"] == 32 && r.DType == "bf16",
		"got %+v", r)
}
