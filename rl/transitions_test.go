package rl_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

func classifications(rewards ...float64) []*rl.Sample {
	var all []*rl.Sample
	for i, r := range rewards {
		all = append(all, &rl.Sample{Tokens: []int32{int32(i + 1)}, Actions: []int32{int32(10 + i)}, Prompt: 4, Truth: 2, Version: 3, Rewards: []float64{r}})
	}
	return all
}

func transitions(rewards ...float64) []*rl.Transition {
	var all []*rl.Transition
	for _, x := range classifications(rewards...) {
		all = append(all, rl.TransitionOf(x))
	}
	return all
}

func TestTransitionsComeBackAsSamples(t *testing.T) {
	x := classifications(1, 2)[1]
	expect.Equal(t, x, rl.TransitionOf(x).Sample())
}

func TestTransitionsAreFirstInFirstOut(t *testing.T) {
	b := must.Get(rl.NewTransitions(3))(t)
	drawn := b.Sample(rl.Stream(1), 4)
	expect.True(t, drawn == nil, "%d sampled from nothing", len(drawn))
	all := transitions(1, 2, 3, 4, 5)
	b.Add(all[:2]...)
	b.Add(all[2:]...)
	seen := map[int32]bool{}
	for _, x := range b.Sample(rl.Stream(1), 50) {
		seen[x.Action] = true
	}
	diff := cmp.Diff(map[int32]bool{12: true, 13: true, 14: true}, seen)
	expect.True(t, diff == "" && b.Len() == 3, "%d held; sampled (-want +got):\n%s", b.Len(), diff)
	state := must.Get(json.Marshal(b.State()))(t)
	again, _ := rl.NewTransitions(3)
	must.Do(t, again.Restore(state))
	expect.Equal(t, b.Sample(rl.Stream(2), 9), again.Sample(rl.Stream(2), 9), "restored")
	small, _ := rl.NewTransitions(2)
	for _, bad := range []string{string(state), `[null]`, `[{"action":1}]`, `[{"tokens":[1],"action":-1}]`, `3`} {
		err := small.Restore([]byte(bad))
		expect.True(t, err != nil && small.Len() == 0, "%.40s is restored: %v", bad, err)
	}
	_, err := rl.NewTransitions(0)
	expect.True(t, err != nil, "a buffer of 0")
}
