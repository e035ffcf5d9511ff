package rollout

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

func TestLabelReplay(t *testing.T) {
	c := labelsConfig()
	c.BufferSize, c.Samples, c.Values, c.Epsilon = 5, 1, false, true
	player := labels(t, classifier(t), labelRewards(t, "accuracy"), c)
	o := LabelReplayOptions{Capacity: 20, Updates: 3, EpsilonStart: 0.9, EpsilonEnd: 0.1, EpsilonDecay: 0.5}
	src := must.Get(NewLabelReplay(player, LabelReplayConfig{LabelReplayOptions: o, BatchSize: 4, Steps: 8, Seed: 1}))(t)
	for at, epsilon := range []float64{0.9, 0.7, 0.5, 0.3, 0.1, 0.1} {
		step := must.Get(src.Next(t.Context(), rl.At{Step: at, Version: uint64(at)}))(t)
		if got := step.Figures.Get("epsilon"); math.Abs(got-epsilon) > 1e-12 || len(step.Samples) != 12 || step.Figures.Get("buffer/size") != float64(min(20, 5*(at+1))) {
			t.Errorf("step %d: epsilon %v, %d samples, a buffer of %v", at, got, len(step.Samples), step.Figures.Get("buffer/size"))
		}
		for _, x := range step.Samples {
			want := 0.0
			if x.Actions[0] == x.Truth {
				want = 1
			}
			expect.True(t, x.Reward() == want && x.Version <= uint64(at), "step %d: %+v", at, x)
		}
	}
	for _, change := range []func(o *LabelReplayOptions){
		func(o *LabelReplayOptions) { o.EpsilonEnd = 0.95 }, func(o *LabelReplayOptions) { o.Updates = 0 }, func(o *LabelReplayOptions) { o.EpsilonDecay = 0 },
		func(o *LabelReplayOptions) { o.EpsilonDecay = 1.5 }, func(o *LabelReplayOptions) { o.Capacity = 0 },
	} {
		bad := o
		change(&bad)
		_, err := NewLabelReplay(player, LabelReplayConfig{LabelReplayOptions: bad, BatchSize: 4, Steps: 8})
		expect.True(t, err != nil, "%+v is accepted", bad)
	}
}

func TestExplore(t *testing.T) {
	count := map[int]int{}
	for i := range 4000 {
		count[explore([]float32{0.2, 0.5, 0.3}, rl.Stream(1, uint64(i)), 0.3)]++
	}
	for k, want := range []float64{0.1, 0.8, 0.1} {
		got := float64(count[k]) / 4000
		expect.True(t, math.Abs(got-want) <= 0.025, "label %d in %.3f of the samples, want %.2f", k, got, want)
	}
}

// TestSample: probabilities need not add up to 1, as sums of float32 do not.
func TestSample(t *testing.T) {
	count := [3]int{}
	for i := range 4000 {
		count[sample([]float32{0.1, 0, 0.3}, rl.Stream(2, uint64(i)))]++
	}
	expect.True(t, math.Abs(float64(count[0])/4000-0.25) <= 0.025 && count[1] <= 0,
		"%v of 4000 samples, want 1000, 0 and 3000", count)
}
