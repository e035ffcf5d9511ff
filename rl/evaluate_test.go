package rl

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

var fine = cmpopts.EquateApprox(0, 1e-6)

func TestEvaluateByHand(t *testing.T) {
	labels := []string{"a", "b", "c", "never"}
	truth := []int{0, 0, 1, 1, 2}
	probs := [][]float32{
		{0.7, 0.1, 0.1, 0.1},     // right; brier .09+.01·3 = .12
		{0.4, 0.5, 0.1, 0},       // wrong; .36+.25+.01 = .62
		{0.25, 0.5, 0.25, 0},     // right; .0625+.25+.0625 = .375
		{0, 1, 0, 0},             // right; 0
		{0.25, 0.25, 0.25, 0.25}, // a by the tie rule, wrong; .5625+3·.0625 = .75
	}
	got := Evaluate(labels, truth, probs)
	// a: TP 1, predicted 2, true 2; b: TP 2, predicted 3, true 2; c: TP 0, predicted 0, true 1.
	want := Evaluation{
		N: 5, Accuracy: 0.6,
		F1Macro:    (0.5 + 0.8 + 0) / 3,
		F1Weighted: (2*0.5 + 2*0.8 + 0) / 5,
		// Bins: one .25 (0 right), two .5 (1 right), one .7 (right), one 1 (right): (.25 + |1 − 1| + .3 + 0)/5
		ECE:   0.55 / 5,
		Brier: (0.12 + 0.62 + 0.375 + 0 + 0.75) / 5,
		Classes: []ClassScores{
			{Label: "a", Precision: 0.5, Recall: 0.5, F1: 0.5, Support: 2},
			{Label: "b", Precision: 2.0 / 3, Recall: 1, F1: 0.8, Support: 2},
			{Label: "c", Support: 1},
			{Label: "never"},
		},
		Confusion: [][]int{{1, 1, 0, 0}, {0, 2, 0, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}},
	}
	expect.Equal(t, want, got, fine, cmpopts.IgnoreFields(Evaluation{}, "Intervals"))
	// Wilson for 3 of 5, from the closed form.
	expect.Equal(t, Interval{0.230724, 0.882379}, got.Intervals.Accuracy, cmpopts.EquateApprox(0, 1e-5), "Wilson interval")
}

// TestF1OfLabels: a label that is predicted or true counts in the macro average, another one does not.
func TestF1OfLabels(t *testing.T) {
	a, b := []float32{1, 0, 0}, []float32{0, 1, 0}
	for name, test := range map[string]struct {
		truth []int
		probs [][]float32
		macro float64
	}{
		"predicted, never true": {[]int{0, 0}, [][]float32{a, b}, (2.0/3 + 0) / 2},
		"true, never predicted": {[]int{0, 1}, [][]float32{a, a}, (2.0/3 + 0) / 2},
		"both":                  {[]int{0, 1}, [][]float32{a, b}, 1},
	} {
		got := Evaluate([]string{"a", "b", "neither"}, test.truth, test.probs).F1Macro
		expect.True(t, math.Abs(got-test.macro) <= 1e-9, "%s: %v, want %v", name, got, test.macro)
	}
}

func TestConfidenceBin(t *testing.T) {
	for _, test := range []struct {
		confidence float32
		want       int
	}{
		{0, 0}, {1e-9, 0}, {0.05, 0},
		{float32(1.0 / 15), 0}, {math.Nextafter32(float32(1.0/15), 1), 1},
		{0.2, 2}, {math.Nextafter32(0.2, 1), 3},
		{0.5, 7}, {0.999, 14}, {1, 14}, {1.0000001, 14},
	} {
		expect.Same(t, test.want, ConfidenceBin(test.confidence), "confidence %v is in b", test.confidence)
	}
}

func TestWilson(t *testing.T) {
	for _, test := range []struct {
		hits, n int
		want    Interval
	}{
		{0, 10, Interval{0, 0.277533}},
		{10, 10, Interval{0.722467, 1}},
		{50, 100, Interval{0.403832, 0.596168}},
	} {
		expect.Equal(t, test.want, Wilson(test.hits, test.n), fine, fmt.Sprintf("Wilson(%d, %d)", test.hits, test.n))
	}
}

// classifier returns n rows over three classes, each predicted correctly with probability skill, with confidences
// around confidence.
func classifier(seed uint64, n int, skill, confidence float32) (truth []int, probs [][]float32) {
	rng := Stream(seed)
	for range n {
		y := rng.IntN(3)
		guess := y
		if rng.Float32() >= skill {
			guess = (y + 1 + rng.IntN(2)) % 3
		}
		p := []float32{(1 - confidence) / 2, (1 - confidence) / 2, (1 - confidence) / 2}
		p[guess] = confidence
		truth, probs = append(truth, y), append(probs, p)
	}
	return truth, probs
}

func TestIntervalsHaveTheirWidthAndAreReproducible(t *testing.T) {
	truth, probs := classifier(1, 400, 0.8, 0.9)
	labels := []string{"x", "y", "z"}
	e := Evaluate(labels, truth, probs)
	for name, test := range map[string]struct {
		in    Interval
		width float64
	}{
		"accuracy":    {e.Intervals.Accuracy, 0.08},
		"f1_macro":    {e.Intervals.F1Macro, 0.08},
		"f1_weighted": {e.Intervals.F1Weighted, 0.08},
		"ece":         {e.Intervals.ECE, 0.08},
		"brier":       {e.Intervals.Brier, 0.13},
	} {
		// 1.96·2·√(.8·.2/400) ≈ .078 for accuracies.
		w := test.in[1] - test.in[0]
		expect.True(t, w >= test.width/2 && w <= test.width*1.5, "%s: width %.3f, want about %.3f", name, w, test.width)
	}
	expect.Equal(t, e, Evaluate(labels, truth, probs), "a second evaluation differs")
}

func TestEvaluateJSON(t *testing.T) {
	e := Evaluate([]string{"a", "b"}, []int{0, 1}, [][]float32{{0.9, 0.1}, {0.2, 0.8}})
	encoded := must.Get(json.Marshal(e))(t)
	expect.Contains(t, string(encoded), `"n":2`, `"accuracy":1`, `"f1_macro":`, `"f1_weighted":`, `"ece":`, `"brier":`, `"classes":[{"label":"a","precision":1,"recall":1,"f1":1,"support":1}`, `"confusion":[[1,0],[0,1]]`, `"intervals":{"accuracy":[`)
	expect.True(t, !strings.Contains(string(encoded), "latency"), "latency that was not measured appears in %s", encoded)
	e.SetLatency(nil)
	expect.True(t, e.LatencyP50 == nil, "no measurements gave a latency")
	e.SetLatency([]float64{5, 1, 2, 4, 3})
	expect.True(t, *e.LatencyP50 == 3 && math.Abs(*e.LatencyP95-4.8) <= 1e-12, "p50 %g and p95 %g, want 3 and 4.8", *e.LatencyP50, *e.LatencyP95)
}

func TestEvaluateRefusesShapesThatDoNotFit(t *testing.T) {
	for name, call := range map[string]func(){
		"rows":    func() { Evaluate([]string{"a", "b"}, []int{0}, nil) },
		"classes": func() { Evaluate([]string{"a", "b"}, []int{0}, [][]float32{{1}}) },
		"label":   func() { Evaluate([]string{"a", "b"}, []int{2}, [][]float32{{1, 0}}) },
	} {
		expect.Panic(t, call, name)
	}
}
