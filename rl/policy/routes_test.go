package policy

import (
	"math"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// TestTrainingTakesTheSamplersRoutes: where a router is near ties, log π while training is that of sampling only with the experts of
// sampling. The completions of a prompt share its tokens.
func TestTrainingTakesTheSamplersRoutes(t *testing.T) {
	p := must.Open(NewCausalLM(Config{Dir: adapterBase(t, "mixture"), Full: true}))(t)
	for _, name := range []string{"layers.0.router.weight", "layers.1.router.weight"} {
		weight := p.model.Weights[name]
		values := must.Get(weight.Read())(t)
		for i := range values { // all experts alike, but for the last bits of their outputs
			values[i] = values[i%p.width()] * (1 + 1e-7*float32(i%7))
		}
		must.Do(t, weight.Write(values))
	}
	sampler := must.Get(p.NewSampler(3))(t)
	defer sampler.Close()
	prompt := []int32{7, 41, 12, 88, 3, 60, 23, 98, 5, 71}
	const samples, width = 6, 2 * 2
	var written []Completion
	o := GenerateOptions{Samples: samples, MaxNew: 24, Sampling: torch.Sampling{Temperature: 1}, StopIDs: []int32{50}}
	must.Do(t, sampler.Generate(t.Context(), [][]int32{prompt}, o, func(_ int, c []Completion) error {
		written = append(written, c...)
		return nil
	}))
	var batch []*rl.Sample
	for _, c := range written {
		expect.Equal(t, (len(prompt)+len(c.IDs)-1)*width, len(c.Routes))
		trajectory := &rl.Trajectory{}
		trajectory.AppendGiven(prompt...)
		trajectory.AppendRoutes(c.Routes, len(c.IDs), len(c.IDs))
		for i, id := range c.IDs {
			trajectory.AppendSampled(id, c.BehaviorLogProbs[i], c.LogProbs[i])
		}
		trajectory.EndTurn(1)
		must.Do(t, trajectory.Validate())
		batch = append(batch, trajectory.Sample(1))
	}
	furthest := func(mode torch.Mode, how Pass) (most float64) {
		how.Temperature = 1
		must.Do(t, torch.Do(mode, func(s *torch.Scope) error {
			got := s.Read(p.Forward(s, rl.NewBatch(batch), how).LogProbs)
			for _, x := range batch {
				for i, want := range x.BehaviorLogProbs {
					most = max(most, math.Abs(float64(got[i]-want)))
				}
				got = got[x.Len():]
			}
			return nil
		}))
		return most
	}
	for _, mode := range []torch.Mode{torch.NoGrad, torch.Train} {
		expect.True(t, furthest(mode, Pass{}) < 1e-5, "log π differs by %g with the sampler's experts", furthest(mode, Pass{}))
		expect.True(t, furthest(mode, Pass{Checkpoint: true}) < 1e-5, "log π of blocks that are computed again differs by %g", furthest(mode, Pass{Checkpoint: true}))
	}
	for _, x := range batch {
		x.Routes = nil
	}
	expect.True(t, furthest(torch.NoGrad, Pass{}) > 1e-3, "the router does not decide otherwise: log π differs by %g", furthest(torch.NoGrad, Pass{}))
	for _, x := range batch {
		x.Routes = slices.Repeat(rl.Routes{0, 3}, len(x.Tokens)*width/2) // as nothing was sampled
	}
	expect.True(t, furthest(torch.NoGrad, Pass{}) > 1e-3, "other routes change nothing")
}
