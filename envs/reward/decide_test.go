package reward

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestRewardsOfDecisions(t *testing.T) {
	cost := "cost:" + must.File(t, "costs.json", `{"a": {"b": 3, "abstain": 0.5}, "*": {"c": 2}}`)
	for _, test := range []struct {
		spec  string
		truth int
		want  float64 // at probabilities of .5, .25 and .25
	}{
		{"brier", 0, -0.25 - 2*0.0625},
		{"brier", 1, -0.25 - 0.5625 - 0.0625},
		{"ranked", 0, 1 - (0.25+0.0625)/2},
		{"ranked", 1, 1 - (0.25+0.0625)/2},
		{"ranked", 2, 1 - (0.25+0.5625)/2},
		{cost, 0, -0.25*3 - 0.25*2},
		{cost, 1, -0.5 - 0.25*2},
		{cost, 2, -0.5 - 0.25 - 0.25*2},
	} {
		r := parseLabels(t, test.spec, "a", "b", "c")
		expect.Same(t, test.spec != cost, r.ReadsProbs(), "%s reads probabilities", test.spec)
		scores, _ := r.expected([]int{test.truth}, []float64{0.5, 0.25, 0.25})
		expect.Same(t, test.want, scores.Total[0], "%s, truth %d", test.spec, test.truth)
		checkGradient(t, test.spec, r, test.truth, []float64{0.5, 0.3, 0.2})
	}
	expect.Same(t, -3.0, score(t, parseLabels(t, cost, "a", "b", "c"), 1, 0), "b for a")
	alone, grad := parseLabels(t, "ranked", "a").Expected([]int{0}, []float32{1})
	expect.True(t, alone.Total[0] == 1 && grad[0] == 0, "one label: %v, gradient %v", alone.Total, grad)
}

func TestCostMatrix(t *testing.T) {
	path := must.File(t, "costs.json", `{"a": {"b": 3}, "*": {"abstain": 0.5}}`)
	want := CostMatrix{"a": {"b": 3}, "*": {"abstain": 0.5}}
	expect.Equal(t, map[string]CostMatrix{"cost:" + path: want}, must.Get(Costs("accuracy,cost:"+path+"=2"))(t))
	expect.Equal(t, []string{"a", "abstain", "b"}, want.Names())
	empty, broken := must.File(t, "costs.json", "{}"), must.File(t, "costs.json", "[1]")
	for spec, message := range map[string]string{
		"cost:" + empty:  empty + ": no costs",
		"cost:" + broken: broken + ": json",
		"cost:none.json": "none.json",
		"cost: ":         "cost needs a file",
	} {
		_, err := Costs(spec)
		expect.Error(t, err, message)
		_, err = ParseLabels(spec, []string{"a"}, Options{})
		expect.Error(t, err, message)
	}
	_, err := Costs("costs")
	expect.Error(t, err, "costs")
}
