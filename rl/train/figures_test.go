package train

import (
	"math"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/torch"
)

// TestOlderVersionsAreNotTheSamplersError: the mismatch between sampler and trainer is measured only on samples of the
// current weights; older versions are expected to differ.
func TestOlderVersionsAreNotTheSamplersError(t *testing.T) {
	of := func(version uint64, old, drawn float32) *rl.Sample {
		return &rl.Sample{Actions: []int32{1}, Version: version, Old: []float32{old}, BehaviorLogProbs: []float32{drawn}}
	}
	m := rl.Meter{}
	compareSampler(m, []*rl.Sample{of(7, -1, -1.25), of(7, -1, -0.25), of(6, -1, -9), {Actions: []int32{1}, Version: 7}}, 7)
	const name = "sampling/sampling_logp_difference/"
	mean, most := m.Get(name+"mean"), m.Get(name+"max")
	expect.True(t, mean == 0.5 && most == 0.75, "differences of 0.25 and 0.75 have mean %v and maximum %v", mean, most)
}

// TestFiguresOfObjectives: DPPO reports the fraction of tokens that it leaves out, VESPO the mean weight of a completion.
func TestFiguresOfObjectives(t *testing.T) {
	low, high := float32(math.Log(0.3)), float32(math.Log(0.9))
	sample := func(advantage float32, old ...float32) *rl.Sample {
		return &rl.Sample{Actions: make([]int32, len(old)), Old: old, Advantage: slices.Repeat([]float32{advantage}, len(old))}
	}
	now := []float32{high, low, high}
	part := []*rl.Sample{sample(1, low, low), sample(-1, low)} // the first token moved far in the advantage's direction
	for name, want := range map[string]float64{"dppo/masked_ratio": 1. / 3, "vespo/phi_mean": (0.5 + 0.25) / 2} {
		var a algo.Algorithm = &algo.DPPO{Divergence: "tv", Delta: 0.2, Cap: 20}
		if name == "vespo/phi_mean" { // with k = 0 a weight is exp(λ − λ·ratio)
			a = &algo.VESPO{PositiveDecay: math.Ln2 / 2, NegativeDecay: math.Ln2}
		}
		figures := map[string]float64{}
		must.Do(t, torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			of := func(values ...float32) torch.Tensor { return s.Floats(values, 3) }
			a.Loss(s, &algo.Batch{LogProbs: of(now...), Old: of(low, low, low), Advantage: of(1, 1, -1), Weight: of(1, 1, 1), Samples: 2, Actions: 3, Part: part, Figures: figures})
			return nil
		}))
		expect.True(t, math.Abs(figures[name]-want) <= 1e-6, "%s %v, want %v", name, figures[name], want)
	}
	if (&algo.ReinforcePlusPlus{Baseline: "group"}).Check(1) == nil || (&algo.ReinforcePlusPlus{Baseline: "none"}).Check(1) != nil {
		t.Error("a prompt's mean needs two samples, and only that")
	}
}

// TestPenaltiesKeepTheirScale: penalties of eight right answers are not scaled up to the difference
// between right and wrong.
func TestPenaltiesKeepTheirScale(t *testing.T) {
	var group []*rl.Sample
	for i := range 8 {
		group = append(group, &rl.Sample{Actions: []int32{0}, Rewards: []float64{1}, Penalty: []float64{0.001 * float64(i)}})
	}
	step := &rl.Step{Groups: [][]*rl.Sample{group}, Samples: group, Figures: rl.Meter{}}
	must.Do(t, newGRPO().Prepare(step))
	for i, x := range group {
		if want := 0.001 * (3.5 - float64(i)); math.Abs(float64(x.Advantage[0])-want) > 1e-6 {
			t.Errorf("sample %d: advantage %v, want %v", i, x.Advantage[0], want)
		}
	}
}

// TestSamplerAndTrainerAgree at temperatures other than 1, in one turn and in several.
func TestSamplerAndTrainerAgree(t *testing.T) {
	for _, temperature := range []float64{1, 0.6, 1.7} {
		r := newTokenRun(newGRPO)
		r.task, r.Options.Temperature, r.Steps = spelling{}, temperature, 3
		var said recorded
		must.Get(r.on(t.Context(), t, trainedToken(t, 4), said.hooks()))(t)
		replayed := newReplayRun(&algo.Replay{Min: 0, Max: 10})
		replayed.ReplayOptions.Temperature, replayed.Steps = temperature, 3
		must.Get(replayed.on(t.Context(), t, trainedToken(t, 4), said.hooks()))(t)
		for i, d := range said.figure("sampling/sampling_logp_difference/max") {
			expect.True(t, d <= 1e-4, "temperature %v, row %d: sampler and trainer differ by %v", temperature, i, d)
		}
	}
}
