package rl_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

var near = cmpopts.EquateApprox(0, 1e-6)

func TestWhiten(t *testing.T) {
	for _, test := range []struct {
		name    string
		x, want []float32
	}{
		{"empty", []float32{}, []float32{}},
		{"one entry stays", []float32{3}, []float32{3}},
		{"two entries", []float32{1, 3}, []float32{-1, 1}},
		// mean 2, population variance 2
		{"five entries", []float32{0, 1, 2, 3, 4}, []float32{-1.4142135, -0.70710677, 0, 0.70710677, 1.4142135}},
		// mean 5e-5, variance 2.5e-9, so the 1e-8 counts: ±5e-5/√1.25e-8
		{"small spread", []float32{0, 1e-4}, []float32{-0.4472136, 0.4472136}},
	} {
		t.Run(test.name, func(t *testing.T) {
			rl.Whiten(test.x)
			expect.Equal(t, test.want, test.x, near)
		})
	}
}

func TestWhitenOfEqualRewardsIsExactlyZero(t *testing.T) {
	for _, value := range []float32{0.1, 0.3, 1.0 / 3, -0.7, 1e-30, 12345.678} {
		for n := 2; n < 40; n++ {
			x := slices.Repeat([]float32{value}, n)
			rl.Whiten(x)
			expect.Equal(t, make([]float32, n), x, value)
		}
	}
}

func TestExplainedVariance(t *testing.T) {
	for name, test := range map[string]struct {
		values, returns []float32
		want            float64
	}{
		"empty":                    {nil, nil, 0},
		"perfect up to a constant": {[]float32{2, 3, 4}, []float32{1, 2, 3}, 1},
		"constant value":           {[]float32{7, 7, 7}, []float32{1, 2, 3}, 0},
		"half":                     {[]float32{0, 1, 0, 1}, []float32{0, 1, 1, 2}, 0.5},
		"worse than a constant":    {[]float32{3, 2, 1}, []float32{1, 2, 3}, -3},
		"equal returns":            {[]float32{1, 2, 3}, []float32{0.1, 0.1, 0.1}, 0},
	} {
		expect.Equal(t, test.want, rl.ExplainedVariance(test.values, test.returns), near, name)
	}
}

// TestLearntRecords: a record has the rewards of its actions if not only the last has one, and their advantages if they differ.
func TestLearntRecords(t *testing.T) {
	missing := rl.Number(math.NaN())
	for _, test := range []struct {
		x    rl.Sample
		want rl.Record
	}{
		{rl.Sample{Rewards: []float64{0, 0, 5}, Advantage: []float32{1, 3}}, rl.Record{Reward: 5, Advantage: 2, PerToken: []rl.Number{1, 3}}},
		{rl.Sample{Rewards: []float64{0, 1, 5}, Advantage: []float32{2, 2}}, rl.Record{Reward: 6, Advantage: 2, PerAction: []rl.Number{0, 1, 5}}},
		{rl.Sample{Rewards: []float64{5}, Overlong: -0.5, Value: []float32{3}, Penalty: []float64{4}}, rl.Record{Reward: 5, Advantage: missing, Overlong: -0.5, Value: []rl.Number{3}, Penalty: []rl.Number{4}}},
		{rl.Sample{}, rl.Record{Advantage: missing}},
	} {
		var r rl.Record
		r.Learnt(&test.x)
		expect.Equal(t, test.want, r, cmp.Comparer(func(a, b rl.Number) bool { return a == b || a != a && b != b }))
	}
	data := must.Get(json.Marshal([]rl.Number{1.5, missing, rl.Number(math.Inf(1))}))(t)
	expect.Same(t, "[1.5,null,null]", string(data), "numbers")
	back := must.Into[[]rl.Number](t, json.Unmarshal, data)
	expect.True(t, back[0] == 1.5 && back[1] != back[1], "numbers came back as %v", back)
	expect.Error(t, json.Unmarshal([]byte(`"x"`), &back[0]), "string")
}

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
	small := must.Get(rl.NewTransitions(2))(t)
	for bad, want := range map[string]string{string(state): "capacity 2 does not fit 3", `[null]`: "transition 0 has no text", `[{"action":1}]`: "transition 0", `[{"tokens":[1]},{"tokens":[1],"action":-1}]`: "transition 1", `3`: "number"} {
		expect.Error(t, small.Restore([]byte(bad)), want)
		expect.Same(t, 0, small.Len(), "transitions of %.40s", bad)
	}
	must.Do(t, small.Restore([]byte(`[{"tokens":[1]},{"tokens":[1]}]`)))
	expect.Failure(rl.NewTransitions(0))(t, "capacity 0 is below 1")
}

// TestScheduleAt has factors worked out from transformers' formulas: step/W in the warm-up, then 1, 1 − d or ½(1 + cos πd),
// with d = (step − W)/(total − W), and for cosine_with_min_lr that times 1 − m plus m.
func TestScheduleAt(t *testing.T) {
	tests := []struct {
		kind  string
		total int
		ratio float64
		steps int
		min   float64
		want  map[int]float64
	}{
		{"constant", 100, 0, 0, 0, map[int]float64{0: 1, 50: 1, 1000: 1}},
		{"constant", 100, 0.5, 10, 0, map[int]float64{0: 1, 4: 1}}, // constant has no warm-up
		{"constant_with_warmup", 100, 0, 10, 0, map[int]float64{0: 0, 1: 0.1, 5: 0.5, 9: 0.9, 10: 1, 1000: 1}},
		{"linear", 100, 0, 0, 0, map[int]float64{0: 1, 25: 0.75, 99: 0.01, 100: 0, 150: 0}},
		{"linear", 110, 0, 10, 0, map[int]float64{0: 0, 1: 0.1, 9: 0.9, 10: 1, 60: 0.5, 110: 0}},
		{"cosine", 100, 0, 0, 0, map[int]float64{0: 1, 25: 0.8535533905932737, 50: 0.5, 75: 0.14644660940672627, 100: 0, 150: 0}},
		{"cosine", 110, 0, 10, 0, map[int]float64{0: 0, 9: 0.9, 10: 1, 60: 0.5, 110: 0}},
		{"cosine_with_min_lr", 100, 0, 0, 0.2, map[int]float64{0: 1, 25: 0.8535533905932737*0.8 + 0.2, 50: 0.6, 100: 0.2, 150: 0.2}},
		{"cosine_with_min_lr", 100, 0, 0, 1, map[int]float64{0: 1, 50: 1, 100: 1}},
		{"cosine_with_min_lr", 110, 0, 10, 0.1, map[int]float64{0: 0, 5: 0.5, 10: 1, 60: 0.55, 110: 0.1}},
		// 6 % of 110 is 6.6, rounded up to 7 steps.
		{"cosine", 110, 0.06, 0, 0, map[int]float64{0: 0, 3: 3. / 7, 6: 6. / 7, 7: 1, 110: 0}},
		{"linear", 0, 0.06, 0, 0, map[int]float64{0: 0, 1: 0}},
		{"cosine", 5, 0, 10, 0, map[int]float64{0: 0, 4: 0.4, 9: 0.9, 10: 0}},
		// A warm-up ratio of 1 is all steps, not one; below 1 one step is left.
		{"linear", 10, 1, 0, 0, map[int]float64{0: 0, 5: 0.5, 9: 0.9, 10: 0}},
		{"linear", 1, 0.1, 0, 0, map[int]float64{0: 1}},
		{"linear", 2, 0.9, 0, 0, map[int]float64{0: 0, 1: 1}},
		// The number of steps overrides the ratio.
		{"constant_with_warmup", 100, 0.5, 4, 0, map[int]float64{0: 0, 3: 0.75, 4: 1}},
	}
	for _, test := range tests {
		s := must.Get(rl.NewSchedule(test.kind, test.total, test.ratio, test.steps, test.min))(t)
		for step, want := range test.want {
			got := s.At(step)
			expect.True(t, math.Abs(got-want) <= 1e-12, "%+v: At(%d) = %g, want %g", s, step, got, want)
		}
		for step := 0; step < test.total+20; step++ {
			got := s.At(step)
			expect.True(t, got >= 0 && got <= 1, "%+v: At(%d) = %g is outside [0,1]", s, step, got)
		}
	}
}

// TestWarmupRises: only the first update has learning rate 0, and no two have the same, for any length.
func TestWarmupRises(t *testing.T) {
	for _, kind := range []string{"constant_with_warmup", "linear", "cosine", "cosine_with_min_lr"} {
		for total := 2; total <= 40; total++ {
			for _, ratio := range []float64{1e-9, 0.03, 0.1, 0.5, 1} {
				s := must.Get(rl.NewSchedule(kind, total, ratio, 0, 0))(t)
				expect.True(t, s.Warmup >= 1 && (ratio != 1 || s.Warmup == total), "%s: %g of %d steps is a warm-up of %d", kind, ratio, total, s.Warmup)
				before := -1.0
				for step := range s.Warmup + 1 {
					if now := s.At(step); !(now > before) && step < total {
						t.Errorf("%+v: At(%d) = %g, the step before had %g", s, step, now, before)
					} else {
						before = now
					}
				}
			}
		}
	}
}

func TestNewScheduleRefuses(t *testing.T) {
	for _, test := range []struct {
		kind  string
		total int
		ratio float64
		steps int
		min   float64
		want  string
	}{
		{"cosin", 10, 0, 0, 0, `"cosin"`},
		{"", 10, 0, 0, 0, "choose linear"},
		{"linear", -1, 0, 0, 0, "-1 steps"},
		{"linear", 10, -0.1, 0, 0, "warm-up of -0.1"},
		{"linear", 10, 2.5, 0, 0, "warm-up of 2.5"},
		{"linear", 10, math.NaN(), 0, 0, "warm-up of NaN"},
		{"linear", 10, math.Inf(1), 0, 0, "warm-up of +Inf"},
		{"linear", 10, 0, -3, 0, "or -3"},
		{"cosine_with_min_lr", 10, 0, 0, 1.5, "down to 1.5"},
	} {
		expect.Failure(rl.NewSchedule(test.kind, test.total, test.ratio, test.steps, test.min))(t, test.want)
	}
}

// These values are part of the format: a change would alter every recorded run.
func TestStreamIsStable(t *testing.T) {
	expect.Same(t, uint64(2050404075864848589), rl.Stream(42, 1, 2, 3).Uint64(), "first value of Stream(42, 1, 2, 3)")
	expect.Equal(t, [][]int{{0, 4, 9}, {2, 3, 5}, {1, 6, 7, 8}}, rl.Minibatches(5, 2, 1, 10, 3, 0))
	var truth []int
	var a, b [][]float32
	var x, y []float64
	for i := range uint64(17) {
		rng := rl.Stream(i)
		p, q := rng.Float64(), rng.Float64()
		truth, a, b = append(truth, rng.IntN(2)), append(a, []float32{float32(p), float32(1 - p)}), append(b, []float32{float32(q), float32(1 - q)})
		x, y = append(x, p), append(y, q)
	}
	c, e := rl.Compare(2, truth, a, b), rl.Evaluate([]string{"a", "b"}, truth, a).Intervals
	got := []rl.Interval{c.F1Macro.Interval, c.ECE.Interval, c.Brier.Interval, e.F1Macro, e.F1Weighted, e.ECE, e.Brier,
		rl.CompareMeans(x, y).Interval, rl.MeanEstimate(x).Interval, rl.RatioEstimate(x, y).Interval}
	expect.Equal(t, []rl.Interval{
		{-0.41133040935672516, 0.2590476190476191}, {-0.3020204773720573, 0.14275553208940156}, {-0.48912476341695155, 0.3070584302763906},
		{0.39285714285714285, 0.8712121212121212}, {0.41992647058823523, 0.8815359477124183}, {0.244241220898488, 0.5577928418622298}, {0.36945194866959946, 0.81892816327571},
		{-0.345892234729065, -8.959130739164582e-05}, {0.5185335998668755, 0.6960057831791496}, {1.0109276022156504, 2.0782225774015526},
	}, got, lastBits)
}
