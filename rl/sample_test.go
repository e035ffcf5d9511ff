package rl

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
)

func TestSampleOfATrajectory(t *testing.T) {
	tr := twoTurns()
	tr.Turns[1].Reward = 2
	for _, test := range []struct {
		name string
		got  *Sample
		want *Sample
	}{
		{"whole", tr.Sample(1), &Sample{
			Tokens: []int32{10, 11, 20, 12, 21, 22}, Rows: []int{1, 3, 4}, Actions: []int32{20, 21, 22},
			Rewards: []float64{0, 0.5, 2}, Ends: []int{1, 2}, BehaviorLogProbs: []float32{-0.6, -0.35, -1.5},
		}},
		// Log-probabilities sampled at another temperature are compared at that temperature.
		{"temperature", tr.Sample(0.7), &Sample{
			Tokens: []int32{10, 11, 20, 12, 21, 22}, Rows: []int{1, 3, 4}, Actions: []int32{20, 21, 22},
			Rewards: []float64{0, 0.5, 2}, Ends: []int{1, 2}, BehaviorLogProbs: []float32{-0.5, -0.25, -1},
		}},
		{"first turn", tr.TurnSample(0, 1), &Sample{
			Tokens: []int32{10, 11, 20, 12, 21}, Rows: []int{1, 3}, Actions: []int32{20, 21}, Rewards: []float64{0, 0.5}, Ends: []int{1}, BehaviorLogProbs: []float32{-0.6, -0.35},
		}},
		{"second turn", tr.TurnSample(1, 1), &Sample{
			Tokens: []int32{10, 11, 20, 12, 21, 22}, Rows: []int{4}, Actions: []int32{22}, Rewards: []float64{2}, Ends: []int{0}, BehaviorLogProbs: []float32{-1.5},
		}},
	} {
		test.want.Prompt, test.want.Index, test.want.Version = 3, 1, 7
		expect.Equal(t, test.want, test.got, test.name)
	}
	tr.Stop = envs.StopLength
	expect.True(t, tr.Sample(1).Truncated, "a trajectory that a limit cut off is not truncated")
}

// TestRewardsOfTurnsWithoutActions go to the previous action, or to the first if there is none.
func TestRewardsOfTurnsWithoutActions(t *testing.T) {
	build := func(turns ...[2]float64) *Trajectory { // sampled tokens and reward of each
		tr := &Trajectory{}
		tr.AppendGiven(1)
		for _, turn := range turns {
			tr.AppendGiven(2)
			for range int(turn[0]) {
				tr.AppendSampled(3, -1, -1)
			}
			tr.EndTurn(turn[1])
		}
		return tr
	}
	for _, test := range []struct {
		turns [][2]float64
		want  []float64
	}{
		{[][2]float64{{2, 1}, {0, 0.5}, {1, 4}}, []float64{0, 1.5, 4}},
		{[][2]float64{{0, 1}, {0, 0.5}, {2, 4}}, []float64{0, 5.5}},
		{[][2]float64{{1, 1}, {0, -3}}, []float64{-2}},
		{[][2]float64{{0, 1}}, nil},
		{[][2]float64{{1, nan}, {1, 1}}, []float64{nan, 1}},
	} {
		tr := build(test.turns...)
		s := tr.Sample(1)
		expect.Equal(t, test.want, s.Rewards, cmpopts.EquateNaNs(), test.turns)
		expect.True(t, len(s.Rewards) <= 0 || !s.HasReward() || s.Reward() == tr.Reward(), "%v: sample's reward %v, trajectory's %v", test.turns, s.Reward(), tr.Reward())
	}
}

func TestPenalties(t *testing.T) {
	s := &Sample{Actions: []int32{5, 6}, Rewards: []float64{0.25, 1}, Overlong: -0.5, Penalty: []float64{0.125, -0.25}}
	expect.True(t, s.Reward() == 1.25 && s.Penalised() == 1.25-0.5-0.125+0.25 && s.HasReward(), "reward %v, with penalties %v, scored: %t", s.Reward(), s.Penalised(), s.HasReward())
	s.Rewards[0] = math.NaN()
	expect.True(t, !s.HasReward() && math.IsNaN(s.Penalised()), "an unscored sample has a reward")
	s.Fill(-2)
	expect.Equal(t, []float32{-2, -2}, s.Advantage)
}

func TestBatch(t *testing.T) {
	tr := twoTurns()
	second := &Trajectory{}
	second.AppendGiven(1)
	second.AppendSampled(2, -2, -3)
	second.EndTurn(1)
	second.AppendGiven(5) // the environment's last text is in no turn
	got := NewBatch([]*Sample{second.Sample(1), tr.TurnSample(1, 1), tr.TurnSample(0, 1)})
	want := &Batch{
		Sequences: [][]int32{{1, 2}, {10, 11, 20, 12, 21, 22}, {10, 11, 20, 12, 21}},
		Rows:      []int64{0, 2 + 4, 8 + 1, 8 + 3},
		Actions:   []int64{2, 22, 20, 21},
		Lengths:   []int{1, 1, 2},
	}
	expect.Equal(t, want, got)
	expect.Equal(t, []float32{7, 8, 9, 9}, got.Spread([]float64{7, 8, 9}))
	labels := NewBatch([]*Sample{{Tokens: []int32{4, 5}, Actions: []int32{2}}, {Tokens: []int32{6}, Actions: []int32{0}}})
	expect.Equal(t, &Batch{Sequences: [][]int32{{4, 5}, {6}}, Actions: []int64{2, 0}, Lengths: []int{1, 1}}, labels, "labels")
}

func TestMicroBatches(t *testing.T) {
	lengths := []int{5, 3, 9, 1, 1, 4}
	for _, test := range []struct {
		limit int
		want  [][2]int
	}{
		{0, [][2]int{{0, 6}}},
		{100, [][2]int{{0, 6}}},
		{8, [][2]int{{0, 2}, {2, 3}, {3, 6}}},
		{10, [][2]int{{0, 2}, {2, 4}, {4, 6}}},
		{1, [][2]int{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}}}, // at least one sequence
	} {
		expect.Equal(t, test.want, MicroBatches(len(lengths), test.limit, func(i int) int { return lengths[i] }), fmt.Sprintf("%d tokens", test.limit))
	}
}

func TestMinibatches(t *testing.T) {
	for _, test := range []struct {
		n, count, size int
		want           []int // sizes of the parts
	}{
		{10, 1, 0, []int{10}},
		{10, 3, 0, []int{3, 3, 4}},
		{10, 4, 0, []int{2, 3, 2, 3}},
		{2, 3, 0, []int{1, 1}}, // none is empty
		{10, 0, 4, []int{4, 4, 2}},
		{10, 7, 4, []int{4, 4, 2}}, // the size decides
		{8, 0, 4, []int{4, 4}},
		{3, 0, 64, []int{3}},
		{0, 4, 0, nil},
		{0, 0, 4, nil},
	} {
		parts := Minibatches(5, 2, 1, test.n, test.count, test.size)
		var sizes, all []int
		for _, part := range parts {
			sizes, all = append(sizes, len(part)), append(all, part...)
			expect.True(t, slices.IsSorted(part), "%+v: part %v is not in order", test, part)
		}
		expect.Equal(t, test.want, sizes, fmt.Sprintf("%+v: sizes", test))
		slices.Sort(all)
		for i, index := range all {
			if i != index {
				t.Errorf("%+v: the parts have %v", test, all)
				break
			}
		}
		expect.Same(t, test.n, len(all), "%+v: the parts have %d samples", test, len(all))
	}
}

// TestMinibatchesAreAFunctionOfTheirArguments: equal arguments give equal minibatches, whatever was divided before;
// another seed, step or epoch gives others.
func TestMinibatchesAreAFunctionOfTheirArguments(t *testing.T) {
	seen := map[string][3]int{}
	for round := range 2 {
		for seed := range 3 {
			for step := range 3 {
				for epoch := range 3 {
					key := fmt.Sprint(Minibatches(uint64(seed), step, epoch, 40, 4, 0))
					who := [3]int{seed, step, epoch}
					other, taken := seen[key]
					expect.True(t, taken == (round == 1) && (!taken || other == who), "seed, step and epoch %v have the parts of %v", who, other)
					seen[key] = who
				}
			}
		}
	}
}
