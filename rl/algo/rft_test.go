package algo

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

func TestAcceptedCompletions(t *testing.T) {
	groups := [][]struct {
		token   int32
		reward  float64
		penalty float64
		masked  bool
	}{
		{{1, 1, 0, false}, {2, 2, 0, false}, {3, 2, 0, false}, {2, 2, 0, false}},      // two best, one of them twice
		{{4, 0.9, 0, false}, {5, math.NaN(), 0, false}, {6, 0, 0, false}},             // none is good enough
		{{7, 1.5, -1, false}, {8, 3, 0, true}, {9, 1, 0, false}, {10, 1.2, 0, false}}, // a penalty, and one that was cut off
	}
	for keep, want := range map[string][]int32{"best": {2, 10}, "all": {1, 2, 3, 9, 10}} {
		step := &rl.Step{Figures: rl.Meter{}}
		for g, group := range groups {
			var all []*rl.Sample
			for i, c := range group {
				x := &rl.Sample{Prompt: g, Index: i, Tokens: []int32{0, c.token}, Actions: []int32{c.token}, Rewards: []float64{c.reward}, Overlong: c.penalty}
				if all = append(all, x); x.HasReward() && !c.masked {
					step.Samples = append(step.Samples, x)
				}
			}
			step.Groups = append(step.Groups, all)
		}
		(&RFT{MinReward: 1, Keep: keep}).accept(step)
		var got []int32
		for _, x := range step.Samples {
			got = append(got, x.Tokens[1])
			expect.Equal(t, []float32{1}, x.Advantage)
		}
		expect.Equal(t, want, got, keep)
		expect.Same(t, float64(len(want))/9, step.Figures.Get("rft/accepted_ratio"), "accepted")
		expect.Same(t, 2./3, step.Figures.Get("rft/solved_ratio"), "prompts with an accepted completion")
	}
}
