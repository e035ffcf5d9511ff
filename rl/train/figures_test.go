package train

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
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
	if mean, most := m.Get(name+"mean"), m.Get(name+"max"); mean != 0.5 || most != 0.75 {
		t.Errorf("differences of 0.25 and 0.75 have mean %v and maximum %v", mean, most)
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
			if d > 1e-4 {
				t.Errorf("temperature %v, row %d: sampler and trainer differ by %v", temperature, i, d)
			}
		}
	}
}
