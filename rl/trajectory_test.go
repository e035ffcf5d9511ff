package rl

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
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

// TestSegments: each segment with an action is a sample after its own tokens alone, and the last one has all rewards.
func TestSegments(t *testing.T) {
	tr := twoTurns()
	tr.Turns[1].Reward = 2
	tr.BeginSegment(30) // without an action
	tr.BeginSegment(31, 32)
	tr.AppendSampled(40, -2, -3)
	tr.EndTurn(1)
	tr.BeginSegment(33)
	tr.AppendGiven(34)
	tr.EndTurn(4)
	must.Do(t, tr.Validate())
	expect.Equal(t, []int32{33, 34}, tr.Context())
	x := tr.Sample(1)
	first := &Sample{Prompt: 3, Index: 1, Version: 7, Tokens: []int32{10, 11, 20, 12, 21, 22}, Rows: []int{1, 3, 4}, Actions: []int32{20, 21, 22}, BehaviorLogProbs: []float32{-0.6, -0.35, -1.5}, Rewards: []float64{0, 0, 0}}
	last := &Sample{Prompt: 3, Index: 1, Version: 7, Tokens: []int32{31, 32, 40}, Rows: []int{1}, Actions: []int32{40}, BehaviorLogProbs: []float32{-3}, Rewards: []float64{7.5}, Ends: []int{0}, Earlier: []*Sample{first}}
	expect.Equal(t, last, x)
	expect.Equal(t, []*Sample{first, last, first}, WithEarlier([]*Sample{last, first}))
	var contexts [][]int32
	for from, tokens := range tr.Contexts() {
		contexts = append(contexts, tokens)
		expect.Same(t, tr.Tokens[from], tokens[0], "first token of a context")
	}
	expect.Equal(t, [][]int32{last.Tokens, first.Tokens}, contexts)
	turn := tr.TurnSample(2, 1)
	expect.True(t, turn.Earlier == nil, "a turn has the segments before it")
	turn.Earlier = x.Earlier
	turn.Rewards[0] += 6.5
	expect.Equal(t, x, turn) // the turn before and that after it have no action of their own here
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
		"first token sampled":    {func(t *Trajectory) { t.Source[0] = Sampled }, "token 0 is the first"},
		"empty segment":          {func(t *Trajectory) { t.Segments = []int{0} }, "segment 2 begins at 0"},
		"empty last segment":     {func(t *Trajectory) { t.BeginSegment() }, "segment 2 begins at 6"},
		"segments at one place":  {func(t *Trajectory) { t.Segments = []int{3, 3} }, "segment 3 begins at 3"},
		"sources":                {func(t *Trajectory) { t.Source = t.Source[1:] }, "6 tokens has 5 sources"},
		"behaviour":              {func(t *Trajectory) { t.BehaviorLogProbs = t.BehaviorLogProbs[1:] }, "5 and 6 log-probabilities"},
		"teacher":                {func(t *Trajectory) { t.Teacher = make([]float32, 5) }, "5 log-probabilities of a teacher"},
		"width of routes":        {func(t *Trajectory) { t.RouteWidth = -1 }, "0 numbers of routes, -1 of each token"},
		"routes of no width":     {func(t *Trajectory) { t.Routes = make(Routes, 2) }, "2 numbers of routes, 0 of each token"},
		"too many routes":        {func(t *Trajectory) { t.Routes, t.RouteWidth = make(Routes, 14), 2 }, "14 numbers of routes, 2 of each token"},
		"segment of an action":   {func(t *Trajectory) { t.Segments = []int{2} }, "token 2 is the first of a segment"},
		"sampled and in no turn": {func(t *Trajectory) { t.Turns = t.Turns[:1] }, "token 5 is sampled"},
	} {
		tr := twoTurns()
		test.change(tr)
		expect.Error(t, tr.Validate(), test.want)
	}
}

// TestEmptyTurnRewardsTheTurnBefore has an environment that drops an action and ends.
func TestEmptyTurnRewardsTheTurnBefore(t *testing.T) {
	tr := twoTurns()
	tr.Turns[1].Reward = 2
	tr.EndTurn(-0.5)
	expect.True(t, len(tr.Turns) == 2 && tr.Turns[1] == (Turn{6, 1.5}) && tr.Validate() == nil, "turns %v, %v", tr.Turns, tr.Validate())
	tr.Turns = tr.Turns[1:]
	tr.EndTurn(1)
	expect.Equal(t, []Turn{{6, 2.5}}, tr.Turns)
}

func TestReturnsToGo(t *testing.T) {
	for _, test := range []struct {
		rewards []float64
		gamma   float64
		want    []float64
	}{
		{[]float64{1, 2, 4}, 0.5, []float64{3, 4, 4}}, // 1+.5·(2+.5·4)
		{[]float64{0, 0, 1}, 1, []float64{1, 1, 1}},
		{[]float64{1, 2}, 0, []float64{1, 2}},
		{[]float64{1, nan, 2}, 0.9, []float64{nan, nan, 2}},
		{nil, 1, []float64{}},
	} {
		expect.Equal(t, test.want, ReturnsToGo(test.rewards, test.gamma), cmpopts.EquateNaNs(), test.rewards)
	}
}

func TestGAE(t *testing.T) {
	advantages, returns := GAE([]float32{1, 2, 4}, []float32{0.5, 1, 2}, []bool{false, true, true}, 0.5, 0.25)
	expect.Equal(t, [2][]float32{{1.125, 1, 2}, {1.625, 2, 4}}, [2][]float32{advantages, returns})
}

func TestOverlongPenalty(t *testing.T) {
	for length, want := range map[int]float64{0: 0, 80: 0, 81: -0.05, 90: -0.5, 100: -1, 101: -1, 500: -1} {
		expect.Same(t, want, OverlongPenalty(length, 100, 20), "penalty of %d tokens", length)
	}
	expect.Same(t, -0.5, OverlongPenalty(3, 6, 6), "penalty of half the tokens with a buffer of all")
	for _, buffer := range []int{0, 7} {
		expect.Panic(t, func() { OverlongPenalty(3, 6, buffer) }, "a buffer of ", buffer)
	}
}

func TestKLController(t *testing.T) {
	c := must.Get(NewKLController(0.1, 6, 100))(t)
	for i, test := range []struct {
		kl   float64
		n    int
		want float64
	}{
		{6, 10, 0.1},
		{6.6, 10, 0.1 * (1 + 0.1*0.1)},
		{600, 10, 0.101 * 1.02},
		{0, 1000, 0.101 * 1.02 * 0.8},
		{math.NaN(), 10, 0.101 * 1.02 * 0.8},
	} {
		c.Update(test.kl, test.n)
		expect.True(t, math.Abs(c.Coef()-test.want) <= 1e-12, "update %d: coefficient %g, want %g", i, c.Coef(), test.want)
	}
	fixed := must.Get(NewKLController(0.1, 0, 0))(t)
	fixed.Update(100, 10)
	expect.True(t, fixed.Coef() == 0.1, "a fixed coefficient became %g", fixed.Coef())
	must.Get(NewKLController(0, 0, 0))(t)
	for _, bad := range [][3]float64{{-1, 0, 0}, {0, 6, 100}, {0.1, 6, 0}, {0.1, 0, 5}, {0.1, -6, -1}, {math.NaN(), 0, 0}, {math.Inf(1), 0, 0}, {0.1, math.Inf(1), math.Inf(1)}} {
		expect.Fails(NewKLController(bad[0], bad[1], bad[2]))(t, "%v is taken", bad)
	}
}

func TestKLKinds(t *testing.T) {
	const d = 0.5
	e := math.Exp(20)
	for name, want := range map[string][2]float64{"k1": {d, -22}, "k2": {d * d / 2, 242}, "k3": {math.Exp(-d) - 1 + d, e - 21 + 2*(e-1)}} { // for -22, along the tangent at -20
		kind := must.Get(ParseKLKind(name))(t)
		got := [2]float64{kind.Value(-1, -1-d), kind.Value(-22, 0)}
		expect.Equal(t, want, got, cmpopts.EquateApprox(1e-12, 0), name)
	}
	expect.Failure(ParseKLKind("k4"))(t, `"k4"`)
}

// TestStepsWithinTurns: the reward of a step goes to its last action, and what none is given for ends with the turn.
func TestStepsWithinTurns(t *testing.T) {
	tr := twoTurns()
	tr.Turns[1].Reward = 2
	tr.Steps = []Turn{{3, 8}, {4, 16}, {5, 64}, {6, 32}} // the second ends with a given token, the others after the first with their turns
	x := tr.Sample(1)
	expect.Equal(t, []float64{24, 64.5, 34}, x.Rewards)
	expect.Equal(t, []int{0, 1, 2}, x.Ends)
	expect.Equal(t, []float64{88.5, 34}, tr.Rewards())
	expect.Same(t, 122.5, tr.Reward(), "reward")
	x = tr.TurnSample(1, 1)
	expect.Equal(t, []float64{34}, x.Rewards)
	expect.Equal(t, []int{0}, x.Ends)
}

// TestRoutesOfTrajectories: tokens keep the experts of the turn that first ran them, also in a checkpoint; tokens that no turn ran have
// none, nor those that an environment took away.
func TestRoutesOfTrajectories(t *testing.T) {
	var tr Trajectory
	sampled := func(ids ...int32) {
		for _, id := range ids {
			tr.AppendSampled(id, 0, 0)
		}
		tr.EndTurn(0)
	}
	tr.AppendGiven(1, 2)
	tr.AppendRoutes(Routes{10, 11, 20, 21, 30, 31}, 2, 2) // 1, 2 and 3; 4 has not run
	sampled(3, 4)
	tr.AppendGiven(5)
	tr.AppendRoutes(Routes{-9, -9, -9, -9, -9, -9, 40, 41, 50, 51, 60, 61, 70, 71}, 3, 1) // of 6, 7, 8 the environment keeps 6
	sampled(6, 4)                                                                         // it adds 4, which has not run
	tr.BeginSegment(9, 8)
	tr.AppendRoutes(nil, 1, 1)
	tr.AppendRoutes(Routes{90, 91, 80, 81}, 1, 1)
	sampled(7)
	data := must.Get(json.Marshal(&tr))(t)
	tr = Trajectory{}
	must.Do(t, json.Unmarshal(data, &tr))
	must.Do(t, tr.Validate())
	x := tr.Sample(1)
	expect.Equal(t, Routes{10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61, -1, -1}, x.Earlier[0].Routes)
	expect.Equal(t, Routes{90, 91, 80, 81}, x.Routes)
	tr.Routes = make(Routes, 2*len(tr.Tokens))
	must.Do(t, tr.Validate())
	tr.Routes = tr.Routes[1:]
	expect.Error(t, tr.Validate(), "has 19 numbers of routes, 2 of each token")
	for text, want := range map[string]string{`"AAAA"`: "routes of 3 bytes", `5`: "number"} {
		expect.Error(t, json.Unmarshal([]byte(text), new(Routes)), want)
	}
}

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
