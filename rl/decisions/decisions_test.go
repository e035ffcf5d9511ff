package decisions

import (
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

var close = cmpopts.EquateApprox(0, 1e-6)

func asks(t testing.TB, name, text string) decision.Question {
	t.Helper()
	return must.Get(decision.ParseQuestion(name, must.Get(jinja.ParseJSON([]byte(text)))(t)))(t)
}

func TestLosses(t *testing.T) {
	target, probs := []float64{0, 1, 0}, []float32{0.5, 0.25, 0.25}
	for _, test := range []struct {
		loss, kind string
		smoothing  float64
		value      float64
		grad       []float64
	}{
		{"cross_entropy", decision.Choice, 0, math.Log(4), []float64{0, 4, 0}},
		// t = 1/10, 8/10, 1/10
		{"cross_entropy", decision.Choice, 0.3, 0.1*math.Log(2) + 0.9*math.Log(4), []float64{0.2, 3.2, 0.4}},
		{"brier", decision.Score, 0, 0.25 + 0.5625 + 0.0625, []float64{-1, 1.5, -0.5}},
		{"ranked", decision.Choice, 0, 0.25 + 0.5625 + 0.0625, []float64{-1, 1.5, -0.5}},
		// F − T = 0.5, −0.25; over 2 steps
		{"ranked", decision.Score, 0, (0.25 + 0.0625) / 2, []float64{-0.5 + 0.25, 0.25, 0}},
	} {
		a := &Supervised{LossOptions: LossOptions{Kind: test.loss, Smoothing: test.smoothing}}
		value, grad := a.value(test.kind, a.smooth(target), probs)
		expect.Same(t, "", cmp.Diff(test.value, value, close)+cmp.Diff(test.grad, grad, close), "%s of %s", test.loss, test.kind)
	}
}

func TestRewards(t *testing.T) {
	costs := must.File(t, "costs.json", `{"a":{"b":10},"*":{"c":0.5}}`)
	cases := []envs.Decision{{Question: asks(t, "q", `{"type":"choice","criteria":{"a":null,"b":null,"c":null}}`), Target: []float64{0.5, 0.5, 0}}}
	probs := []float32{0.5, 0.25, 0.25}
	for spec, want := range map[string]float64{
		"accuracy":    0.5*0.5 + 0.5*0.25,
		"brier":       -(0.5*(0.25+0.0625+0.0625) + 0.5*(0.25+0.5625+0.0625)),
		"calibration": 1 - (0.5*(0.25+0.0625+0.0625)+0.5*(0.25+0.5625+0.0625))/2,
		// truth a: F − T = −0.5, −0.25; truth b: 0.5, −0.25; over 2 steps
		"ranked": 1 - (0.25+0.0625)/2,
		// truth a: b costs 10, c 0.5; truth b: a costs 1, c 0.5
		"cost:" + costs:       -(0.5*(0.25*10+0.25*0.5) + 0.5*(0.5*1+0.25*0.5)),
		"expr:'probs[label]'": 0.5*0.5 + 0.5*0.25,
	} {
		r := must.Get(NewRewards(spec, cases))(t)
		got, grad := r.Objective(0, cases[0].Target, probs)
		expect.True(t, math.Abs(got-want) <= 1e-6, "%s: %v, want %v", spec, got, want)
		// A step along the simplex changes the reward as the gradient says.
		const h = 1e-3
		moved, _ := r.Objective(0, cases[0].Target, []float32{0.5 + h, 0.25 - h, 0.25})
		back, _ := r.Objective(0, cases[0].Target, []float32{0.5 - h, 0.25 + h, 0.25})
		slope := (moved - back) / (2 * h)
		expect.True(t, math.Abs(slope-(grad[0]-grad[1])) <= 2e-3, "%s: gradient %v, measured %v", spec, grad[0]-grad[1], slope)
	}
	r := must.Get(NewRewards("cost:"+costs, cases))(t)
	expect.Equal(t, -0.5*0-0.5*1, r.Of(0, 0))
	must.Do(t, os.WriteFile(costs, []byte(`{"a":{"z":10}}`), 0o644))
	expect.Failure(NewRewards("cost:"+costs, cases))(t, `"z"`)
	expect.Failure(NewRewards("cmd:true", cases))(t, "one option only")
	expect.Failure(NewRewards("acuracy", nil))(t, "acuracy")
}

// TestObservedIsUnbiased: over the choices of the behaviour policy, the estimate of what one option got is the answer.
func TestObservedIsUnbiased(t *testing.T) {
	target, behaviour, probs := []float64{0.2, 0.7, 0.1}, []float64{0.5, 0.3, 0.2}, []float32{0.6, 0.1, 0.3}
	mean := make([]float64, 3)
	for a, mu := range behaviour {
		for k, x := range Observed(envs.Feedback{Chosen: a, Reward: target[a], Probability: mu}, probs) {
			mean[k] += mu * x
		}
	}
	expect.Equal(t, target, mean, close)
	// The weight of rare choices is bounded: 1/0.05.
	expect.Equal(t, 20.0, Observed(envs.Feedback{Chosen: 0, Reward: 1, Probability: 1e-6}, []float32{0, 1})[0])
}

func TestEvaluate(t *testing.T) {
	score := asks(t, "s", `{"type":"score","criteria":["x","y","z"]}`)
	noul := asks(t, "n", `{"type":"noul"}`)
	cases := []envs.Decision{
		{Question: score, Target: []float64{0, 0, 1}}, {Question: noul, Target: []float64{0.75, 0.25}}, {Question: noul, Feedback: &envs.Feedback{}},
	}
	probs := [][]float64{{0.5, 0.25, 0.25}, {0.75, 0.25}, {1, 0}}
	e := Evaluate(cases, probs)
	expect.Equal(t, 2, e.N)
	expect.Equal(t, 0.5, e.Accuracy.Value)
	for name, values := range map[string][2]float64{
		"brier of scores": {0.25 + 0.0625 + 0.5625, e.Types["score"].Brier.Value}, "brier of noul": {0, e.Types["noul"].Brier.Value},
		"ranked": {(0.25 + 0.5625) / 2, e.Types["score"].Ranked.Value}, "ece": {(0.5 + 0.25) / 2, e.ECE.Value},
		"loss": {(math.Log(4) - 0.75*math.Log(0.75) - 0.25*math.Log(0.25)) / 2, e.Loss},
	} {
		expect.True(t, math.Abs(values[0]-values[1]) <= 1e-6, "%s: %v, want %v", name, values[1], values[0])
	}
	expect.True(t, e.Types["noul"].Ranked == nil && len(e.Questions) == 2, "scores of the wrong questions")
	_, rows := e.Table()
	for i, s := range []Scores{e.Scores, e.Types["noul"], e.Types["score"], e.Questions["n"], e.Questions["s"]} {
		ranked := ""
		if s.Ranked != nil {
			ranked = estimate(*s.Ranked)
		}
		low, high := 100*s.Accuracy.Interval[0], 100*s.Accuracy.Interval[1]
		want := []string{[]string{"all", "noul", "score", "question n", "question s"}[i], fmt.Sprint(s.N), fmt.Sprintf("%.1f [%.1f, %.1f]", 100*s.Accuracy.Value, low, high), estimate(s.Brier), estimate(s.ECE), ranked}
		expect.Equal(t, want, rows[i], "row of the table")
	}
}

// TestCost: other rows choose the threshold than those that it is measured on; rows without an answer do not count.
func TestCost(t *testing.T) {
	q := asks(t, "q", `{"type":"choice","criteria":{"a":null,"b":null}}`)
	m := reward.CostMatrix{"b": {"a": 10}, "*": {"abstain": 0.8}}
	cases := []envs.Decision{{Question: q, Target: []float64{1, 0}}, {Question: q, Feedback: &envs.Feedback{}}, {Question: q, Target: []float64{0, 1}}, {Question: q, Target: []float64{0, 1}}}
	probs := [][]float64{{0.95, 0.05}, {0.5, 0.5}, {0.6, 0.4}, {0.1, 0.9}}
	held, heldProbs := []envs.Decision{{Question: q, Target: []float64{0, 1}}, {Question: q, Target: []float64{1, 0}}}, [][]float64{{0.92, 0.08}, {0.97, 0.03}}
	// Most likely: a (0), a (10), b (0). Cheapest: a costs 0.5, b 0.95, abstaining 0.8; a 4, abstaining 0.8, b 0.6; b 0.1.
	for _, test := range []struct {
		held      []envs.Decision
		probs     [][]float64
		threshold float64
		rejecting float64
		abstained float64
	}{
		{cases, probs, 0.75, 0.8 / 3, 1.0 / 3},
		{held, heldProbs, 0.945, 1.6 / 3, 2.0 / 3},
	} {
		s := Cost(m, cases, probs, test.held, test.probs, "val")
		for name, values := range map[string][2]float64{
			"likely": {10.0 / 3, s.Likely.Value}, "cheapest": {0, s.Cheapest.Value}, "saved": {-10.0 / 3, s.Saved.Difference}, "rejecting": {test.rejecting, s.Rejecting.Value},
			"threshold": {test.threshold, s.Threshold}, "abstained": {test.abstained, s.Abstained[1]}, "abstained for its cost": {0, s.Abstained[0]},
		} {
			expect.True(t, math.Abs(values[0]-values[1]) <= 1e-9, "%s: %v, want %v", name, values[1], values[0])
		}
	}
	// A wrong b costs as much: abstaining is cheapest of the second case.
	m["a"] = map[string]float64{"b": 10}
	s := Cost(m, cases, probs, cases, probs, "val")
	expect.True(t, math.Abs(s.Abstained[0]-2.0/3) <= 1e-9 && math.Abs(s.Cheapest.Value-1.6/3) <= 1e-9, "abstains from %v, cost %v", s.Abstained[0], s.Cheapest.Value)
	expect.Contains(t, s.String(), "difference -2.8000", "abstains 66.7 %", "below 0.750 (chosen on val): 0.2667", "abstains 33.3 %")
	// Without a cost of its own it is no answer.
	delete(m, "*")
	s = Cost(m, cases, probs, cases, probs, "val")
	expect.True(t, s.Abstained[0] == 0, "abstains from %v", s.Abstained[0])
}

// TestThreshold: of equal costs the lowest threshold wins, and none is needed where answers cost no more than abstaining.
func TestThreshold(t *testing.T) {
	for want, rows := range map[float64][]answered{
		0.6: {{top: 0.5, likely: 1}, {top: 0.7, likely: 0.3, nothing: 0.3}}, 0.85: {{top: 0.5, likely: 1}, {top: 0.7, likely: 0.4, nothing: 0.3}}, 0: {{top: 0.5, nothing: 0.1}, {top: 0.7, likely: 0.1}},
	} {
		expect.True(t, math.Abs(threshold(rows)-want) <= 1e-12, "threshold %v of %v, want %v", threshold(rows), rows, want)
	}
}

func TestFit(t *testing.T) {
	var cases []envs.Decision
	var logProbs [][]float32
	q := asks(t, "q", `{"type":"noul"}`)
	for i := range 50 {
		p := 0.1 + 0.8*float64(i)/49
		cases = append(cases, envs.Decision{Question: q, Target: []float64{p, 1 - p}})
		logProbs = append(logProbs, []float32{float32(2 * math.Log(p)), float32(2 * math.Log(1-p))})
	}
	got := fit(cases, logProbs, Labelled(cases))
	expect.True(t, math.Abs(got-2) <= 1e-3, "temperature %v, want 2", got)
	// Answers that are always the most likely one have no best temperature.
	for i := range cases {
		cases[i].Target = []float64{1, 0}
		logProbs[i] = []float32{-0.1, -2.3}
	}
	expect.Equal(t, 1.0, fit(cases, logProbs, Labelled(cases)))
}
