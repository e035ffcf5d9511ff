package rl

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// twoTurns is a prompt of two tokens, a turn with a given token in it, and a turn that could not be scored.
func twoTurns() *Trajectory {
	t := &Trajectory{Prompt: 3, Index: 1, Version: 7, Stop: envs.StopEnd}
	t.AppendGiven(10, 11)
	t.AppendSampled(20, -0.5, -0.6)
	t.AppendGiven(12)
	t.AppendSampled(21, -0.25, -0.35)
	t.EndTurn(0.5)
	t.AppendSampled(22, -1, -1.5)
	t.EndTurn(math.NaN())
	return t
}

func TestTrajectory(t *testing.T) {
	tr := twoTurns()
	must.Do(t, tr.Validate())
	want := &Trajectory{
		Prompt: 3, Index: 1, Version: 7, Stop: envs.StopEnd,
		Tokens:           []int32{10, 11, 20, 12, 21, 22},
		Source:           []Source{Given, Given, Sampled, Given, Sampled, Sampled},
		BehaviorLogProbs: []float32{0, 0, -0.5, 0, -0.25, -1},
		LogProbs:         []float32{0, 0, -0.6, 0, -0.35, -1.5},
		Turns:            []Turn{{5, 0.5}, {6, math.NaN()}},
	}
	expect.Equal(t, want, tr, cmpopts.EquateNaNs())
	expect.True(t, tr.Len() == 3 && math.IsNaN(tr.Reward()), "length %d, reward %v", tr.Len(), tr.Reward())
	tr.Turns[1].Reward = 2
	expect.Same(t, 2.5, tr.Reward(), "reward")
	expect.True(t, math.IsNaN((&Trajectory{}).Reward()), "a trajectory without turns has a reward")
}

func TestTrajectoryJSON(t *testing.T) {
	before := twoTurns()
	before.Info = &envs.Info{Correct: true, FoundBy: "tag"}
	encoded := must.Get(json.Marshal(before))(t)
	var after Trajectory
	must.Do(t, json.Unmarshal(encoded, &after))
	expect.Equal(t, before, &after, cmpopts.EquateNaNs())
}

func TestTrajectoryValidate(t *testing.T) {
	for _, test := range map[string]struct {
		change func(*Trajectory)
		want   string
	}{
		"lengths":                {func(t *Trajectory) { t.LogProbs = t.LogProbs[1:] }, "6 and 5 log-probabilities"},
		"empty":                  {func(t *Trajectory) { *t = Trajectory{} }, "without tokens"},
		"turns out of order":     {func(t *Trajectory) { t.Turns[1].End = 5 }, "turn 1 ends at 5"},
		"turn beyond the end":    {func(t *Trajectory) { t.Turns[1].End = 7 }, "turn 1 ends at 7"},
		"unknown source":         {func(t *Trajectory) { t.Source[1] = 2 }, "token 1 has the source 2"},
		"first token sampled":    {func(t *Trajectory) { t.Source[0] = Sampled }, "first token"},
		"sampled and in no turn": {func(t *Trajectory) { t.Turns = t.Turns[:1] }, "token 5 is sampled"},
	} {
		tr := twoTurns()
		test.change(tr)
		expect.Error(t, tr.Validate(), test.want)
	}
}

// TestShortestTrajectory has one token and a turn whose action was dropped.
func TestShortestTrajectory(t *testing.T) {
	var tr Trajectory
	tr.AppendGiven(1)
	tr.EndTurn(0)
	expect.NoError(t, tr.Validate(), "Validate")
}

// TestEmptyTurnRewardsTheTurnBefore has an environment that drops an action and ends.
func TestEmptyTurnRewardsTheTurnBefore(t *testing.T) {
	tr := twoTurns()
	tr.Turns[1].Reward = 2
	tr.EndTurn(-0.5)
	expect.True(t, len(tr.Turns) == 2 && tr.Turns[1] == (Turn{6, 1.5}) && tr.Validate() == nil,
		"turns %v, %v", tr.Turns, tr.Validate())
}
