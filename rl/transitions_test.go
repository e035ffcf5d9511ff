package rl

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func classifications(rewards ...float64) []*Sample {
	var all []*Sample
	for i, r := range rewards {
		all = append(all, &Sample{Tokens: []int32{int32(i + 1)}, Actions: []int32{int32(10 + i)}, Prompt: 4, Truth: 2, Version: 3, Rewards: []float64{r}})
	}
	return all
}

func TestTransitionsOf(t *testing.T) {
	of := func(at int, reward, discount float64, next ...int32) *Transition {
		return &Transition{Tokens: []int32{int32(at + 1)}, Action: int32(10 + at), Reward: reward, Next: next, Discount: discount, Prompt: 4, Truth: 2, Version: 3}
	}
	nan := math.NaN()
	for name, test := range map[string]struct {
		rewards []float64
		gamma   float64
		n       int
		want    []*Transition
	}{
		"one step":            {[]float64{1, 2, 4}, 0.5, 1, []*Transition{of(0, 1, 0.5, 2), of(1, 2, 0.5, 3), of(2, 4, 0)}},
		"two steps":           {[]float64{1, 2, 4}, 0.5, 2, []*Transition{of(0, 2, 0.25, 3), of(1, 4, 0), of(2, 4, 0)}},
		"more than there are": {[]float64{1, 2}, 0.5, 9, []*Transition{of(0, 2, 0), of(1, 2, 0)}},
		"a missing reward":    {[]float64{1, nan, 4}, 0.5, 2, []*Transition{of(2, 4, 0)}},
		"an episode of one":   {[]float64{1}, 1, 1, []*Transition{of(0, 1, 0)}},
	} {
		if diff := cmp.Diff(test.want, TransitionsOf(classifications(test.rewards...), test.gamma, test.n)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestTransitionsAreFirstInFirstOut(t *testing.T) {
	b, err := NewTransitions(3)
	if err != nil {
		t.Fatal(err)
	}
	if drawn := b.Draw(Stream(1), 4); drawn != nil {
		t.Errorf("%d drawn from nothing", len(drawn))
	}
	all := TransitionsOf(classifications(1, 2, 3, 4, 5), 1, 1)
	b.Add(all[:2]...)
	b.Add(all[2:]...)
	seen := map[int32]bool{}
	for _, x := range b.Draw(Stream(1), 50) {
		seen[x.Action] = true
	}
	if diff := cmp.Diff(map[int32]bool{12: true, 13: true, 14: true}, seen); diff != "" || b.Len() != 3 {
		t.Errorf("%d held; drawn (-want +got):\n%s", b.Len(), diff)
	}
	state, err := json.Marshal(b.State())
	if err != nil {
		t.Fatal(err)
	}
	again, _ := NewTransitions(3)
	if err := again.Restore(state); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.Draw(Stream(2), 9), again.Draw(Stream(2), 9)); diff != "" {
		t.Errorf("restored (-before +after):\n%s", diff)
	}
	small, _ := NewTransitions(2)
	for _, bad := range []string{string(state), `[null]`, `[{"action":1}]`, `[{"tokens":[1],"action":-1}]`, `3`} {
		if err := small.Restore([]byte(bad)); err == nil || small.Len() != 0 {
			t.Errorf("%.40s is restored: %v", bad, err)
		}
	}
	if _, err := NewTransitions(0); err == nil {
		t.Error("a buffer of 0")
	}
}
