package torch_test

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestOptimizersOfOthers compares three steps with torch's Muon and bitsandbytes' 8-bit AdamW, as scripts/fixtures/optimizers.py wrote
// them, without a break and with the state moved to another optimiser after two steps.
func TestOptimizersOfOthers(t *testing.T) {
	torchtest.NoLeaks(t)
	var wanted map[string]struct {
		Shape  []int64   `json:"shape"`
		Values []float64 `json:"values"`
	}
	must.JSON(t, "testdata/optimizers.json", &wanted)
	for name, want := range wanted {
		for _, moved := range []bool{false, true} {
			n := int(want.Shape[0] * want.Shape[1])
			values, gradient := make([]float32, n), make([]float32, n)
			for i := range values {
				values[i] = float32(math.Sin(float64(i)))
			}
			p := must.Get(torch.Parameter(values, want.Shape...))(t)
			defer p.Close()
			restarted := func() *torch.Optimizer {
				o := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: []*torch.Var{p}, WeightDecay: 0.1, Muon: name[0] == 'm', EightBit: name[0] == 'a'})
				t.Cleanup(o.Close)
				return o
			}
			o := restarted()
			for step := 1; step <= 3; step++ {
				for i := range gradient {
					gradient[i] = float32((2 + math.Cos(float64(i*step))) * float64(1-2*(i%2)) * math.Pow(10, -float64(i/256%5)))
				}
				must.Do(t, torch.Do(torch.Train, func(s *torch.Scope) error {
					s.Backward(s.Sum(s.Mul(p.T(), s.Floats(gradient, want.Shape...))))
					return nil
				}))
				if step == 3 && moved {
					old := o
					o = restarted()
					to := must.Get(o.States())(t)
					for i, from := range must.Get(old.States())(t) {
						must.Do(t, to[i].Write(must.Get(from.Read())(t)))
					}
					must.Do(t, o.Continue(2))
				}
				must.Get(o.Step([]float64{0.01}, 0))(t)
			}
			got := must.Get(p.Read())(t)
			for i, value := range want.Values {
				// A product in bf16 differs by the order of its sums, and a moment halfway between two codes by its rounding.
				expect.True(t, math.Abs(float64(got[97*i])-value) < 2e-4, "%s: value %d is %g, want %g", name, 97*i, got[97*i], value)
			}
		}
	}
}
