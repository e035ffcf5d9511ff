package algo

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

// TestClipCovLeavesOutSome: the number of actions is a fraction of all, at least one and at most the candidates, and another stream
// picks others.
func TestClipCovLeavesOutSome(t *testing.T) {
	var batch []*rl.Sample
	now := Selection{}
	for i := range 20 {
		x := &rl.Sample{}
		for j := range 5 {
			x.Actions, x.Advantage = append(x.Actions, 0), append(x.Advantage, float32(i%4)-1.5)
			now[x] = append(now[x], -float32(i*j%7))
		}
		batch = append(batch, x)
	}
	picked := func(fraction, low, high float64, seed uint64) (n int, where []int) {
		a := &ClipCov{Clip: Clip{Low: 0.2, High: 0.2}, Fraction: fraction, Low: low, High: high}
		selected := a.pick(batch, now, rl.Stream(seed))
		for i, x := range batch {
			for _, v := range selected[x] {
				if v == 1 {
					n, where = n+1, append(where, i)
				}
			}
		}
		return n, where
	}
	candidates, _ := picked(1, 1, 5, 1)
	expect.Require(t, candidates > 10 && candidates < 40, "%d candidates", candidates)
	some, first := picked(0.1, 1, 5, 1)
	_, second := picked(0.1, 1, 5, 2)
	least, _ := picked(1e-4, 1, 5, 1)
	none, _ := picked(1, 50, 60, 1)
	expect.True(t, some == 10 && least == 1 && none == 0, "%d of 100 actions for a tenth, %d for 1e-4, %d without candidates", some, least, none)
	even := &rl.Sample{Actions: []int32{0, 0}, Advantage: []float32{1, 1}}
	a := &ClipCov{Clip: Clip{Low: 0.2, High: 0.2}, Fraction: 1, Low: 0, High: 5}
	expect.Equal(t, []float32{0, 0}, a.pick([]*rl.Sample{even}, Selection{even: {-1, -2}}, rl.Stream(1))[even], "actions at the lower bound")
	different := false
	for i := range first {
		different = different || first[i] != second[i]
	}
	expect.True(t, different, "another stream picks the same actions")
}
