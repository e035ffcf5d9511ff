package algo

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/rl"
)

func TestWeight(t *testing.T) {
	for reduction, want := range map[string][3]float64{
		ReduceToken: {1. / 16, 1. / 16, 1. / 16}, ReduceSequence: {1. / 15, 1. / 3, 1. / 30}, ReduceDrGRPO: {1. / 60, 1. / 60, 1. / 60},
	} {
		for i, n := range []int{5, 1, 10} {
			if got := ActionWeight(reduction, n, 3, 16, 20); got != want[i] {
				t.Errorf("%s: a token of %d weighs %v, want %v", reduction, n, got, want[i])
			}
		}
	}
}

// TestBaselineIsWhatWasTakenOff: the figure is the mean of rewards less advantages, of the samples that have a reward.
func TestBaselineIsWhatWasTakenOff(t *testing.T) {
	sample := func(reward float64) *rl.Sample {
		return &rl.Sample{Actions: []int32{1, 2}, Rewards: []float64{0, reward}}
	}
	step := &rl.Step{Figures: rl.Meter{}, Groups: [][]*rl.Sample{{sample(1), sample(3)}, {sample(4), sample(math.NaN())}}}
	compare(step, rl.Advantages{Baseline: rl.BaselineGroup, Scale: rl.ScaleNone}, nil)
	// Means of 2, 2 and 4; a reward that nothing is compared with has no advantage.
	if got, want := step.Figures.Get("baseline/mean"), (2.0+2+4)/3; math.Abs(got-want) > 1e-12 {
		t.Errorf("baseline %v, want %v", got, want)
	}
	if a := step.Groups[0][1].Advantage; len(a) != 2 || a[0] != 1 || a[1] != 1 {
		t.Errorf("advantages %v of a reward of 3 with a mean of 2", a)
	}
}
