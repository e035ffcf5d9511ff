package torch_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestOptimizersOfOthers compares three steps with torch's AdamW and Muon and bitsandbytes' 8-bit AdamW, as
// scripts/fixtures/optimizers.py wrote them, without a break and with the state moved to another optimiser after two steps.
func TestOptimizersOfOthers(t *testing.T) {
	torchtest.NoLeaks(t)
	wanted := must.JSON[map[string]struct {
		Shape  []int64   `json:"shape"`
		Values []float64 `json:"values"`
	}](t, "testdata/optimizers.json")
	for name, want := range wanted {
		for _, moved := range []bool{false, true} {
			n := int(want.Shape[0] * want.Shape[1])
			values, gradient := make([]float32, n), make([]float32, n)
			for i := range values {
				values[i] = float32(math.Sin(float64(i)))
			}
			p := must.Open(torch.Parameter(values, want.Shape...))(t)
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
				torchtest.Do(t, torch.Train, func(s *torch.Scope) {
					s.Backward(s.Sum(s.Mul(p.T(), s.Floats(gradient, want.Shape...))))
				})
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
			// A product in bf16 differs by the order of its sums, and a moment halfway between two codes by its rounding.
			limit := map[byte]float64{'m': 2e-4, 'a': 2e-4, 't': 1e-6}[name[0]]
			for i, value := range want.Values {
				expect.True(t, math.Abs(float64(got[97*i])-value) < limit, "%s: value %d is %g, want %g", name, 97*i, got[97*i], value)
			}
		}
	}
}

// TestMomentsOfALongParameter: moments in 8 bits are the same whether a parameter is long or in two halves.
func TestMomentsOfALongParameter(t *testing.T) {
	torchtest.NoLeaks(t)
	const n = 5000 * 256
	values, gradient := make([]float32, n), make([]float32, n)
	for i := range values {
		values[i], gradient[i] = float32(math.Sin(float64(i))), float32(math.Cos(float64(i))*math.Pow(10, -float64(i/1000%5)))
	}
	moved := func(parts int) (all []float32) {
		var params []*torch.Var
		for i := range parts {
			p := must.Open(torch.Parameter(values[i*n/parts:(i+1)*n/parts], int64(n/parts)))(t)
			params = append(params, p)
		}
		o := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: params, WeightDecay: 0.1, EightBit: true})
		defer o.Close()
		for range 2 {
			torchtest.Do(t, torch.Train, func(s *torch.Scope) {
				for i, p := range params {
					s.Backward(s.Sum(s.Mul(p.T(), s.Floats(gradient[i*n/parts:(i+1)*n/parts], int64(n/parts)))))
				}
			})
			must.Get(o.Step([]float64{0.01}, 0))(t)
		}
		for _, p := range params {
			all = append(all, must.Get(p.Read())(t)...)
		}
		return all
	}
	expect.True(t, slices.Equal(moved(2), moved(1)), "a long parameter moves elsewhere")
}

// TestBytesOfTheOptimizer: a group's StateBytes are the size of its moments.
func TestBytesOfTheOptimizer(t *testing.T) {
	torchtest.NoLeaks(t)
	p, odd := must.Get(torch.Parameter(make([]float32, 64*128), 64, 128))(t), must.Get(torch.Parameter(make([]float32, 65*3), 65, 3))(t)
	defer torch.CloseAll(p, odd)
	for _, g := range []torch.ParamGroup{{}, {Muon: true}, {EightBit: true}} {
		g.Params = []*torch.Var{p, odd}
		o := torch.NewOptimizer(torch.AdamEps, g)
		defer o.Close()
		var held int64
		for _, state := range must.Get(o.States())(t) {
			size := int64(4)
			if strings.HasPrefix(state.Name, "first8.") || strings.HasPrefix(state.Name, "second8.") {
				size = 1
			}
			held += size * must.Get(state.Elements())(t)
		}
		expect.Same(t, held, must.Get(g.StateBytes())(t), "Muon %t, 8 bits %t: bytes", g.Muon, g.EightBit)
	}
}
