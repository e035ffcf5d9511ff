package rl

import (
	"encoding/json"
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
	expect.Equal(t, Evaluation{Classes: []ClassScores{{Label: "a"}}, Confusion: [][]int{{0}}}, Evaluate(labels[:1], nil, nil))
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

func TestShapesThatDoNotFitPanic(t *testing.T) {
	for name, call := range map[string]func(){
		"rows":           func() { Evaluate([]string{"a", "b"}, []int{0}, nil) },
		"classes":        func() { Evaluate([]string{"a", "b"}, []int{0}, [][]float32{{1}}) },
		"label":          func() { Evaluate([]string{"a", "b"}, []int{2}, [][]float32{{1, 0}}) },
		"negative label": func() { Evaluate([]string{"a", "b"}, []int{-1}, [][]float32{{1, 0}}) },
		"runs":           func() { CompareRuns(2, nil, make([][][]float32, 2), make([][][]float32, 1)) },
		"run a":          func() { Compare(2, []int{0}, [][]float32{{1}}, [][]float32{{1, 0}}) },
		"run b":          func() { Compare(2, []int{0}, [][]float32{{1, 0}}, [][]float32{{1}}) },
		"means":          func() { CompareMeans(make([]float64, 2), make([]float64, 3)) },
		"values of GAE":  func() { GAE(make([]float32, 1), make([]float32, 2), make([]bool, 1), 1, 1) },
		"ends of GAE":    func() { GAE(make([]float32, 1), make([]float32, 1), make([]bool, 2), 1, 1) },
		"returns":        func() { ExplainedVariance(make([]float32, 1), make([]float32, 2)) },
		"k":              func() { PassAt(3, 1, 0) },
		"k above n":      func() { PassAt(3, 1, 4) },
		"correct":        func() { PassAt(3, -1, 1) },
		"all correct":    func() { PassAt(3, 4, 1) },
		"replayed turns": func() { newReplay(t, 1).Add(twoTurns(), []float64{1}) },
	} {
		expect.Panic(t, call, name)
	}
}

func TestPercentiles(t *testing.T) {
	expect.Equal(t, []float64{1, 1.5, 2, 3}, percentiles([]float64{3, 1, 2}, 0, 0.25, 0.5, 1))
	expect.Equal(t, []float64{7}, percentiles([]float64{7}, 0.95))
}

// TestRatioEstimate: the ratio is that of the sums, not the mean of ratios, and rows that agree have no interval.
func TestRatioEstimate(t *testing.T) {
	got := RatioEstimate([]float64{1, 8}, []float64{1, 2})
	expect.True(t, got.Value == 3 && got.Interval[0] == 1 && got.Interval[1] == 4, "%+v", got)
	got = RatioEstimate([]float64{2, 4, 6}, []float64{1, 2, 3})
	expect.True(t, got.Value == 2 && got.Interval == (Interval{2, 2}), "%+v", got)
	expect.Same(t, Estimate{}, RatioEstimate(nil, nil), "RatioEstimate")
}

func TestRateEstimate(t *testing.T) {
	for _, test := range []struct {
		rows []float64
		want Estimate
	}{
		{make([]float64, 38), Estimate{0, Interval{0, 0.0918}}},
		{[]float64{1, 1, 1, 1}, Estimate{1, Interval{0.5101, 1}}},
		{[]float64{1, 0, 0.5, 0.5}, Estimate{0.5, Interval{0.1500, 0.8500}}},
		{[]float64{0.25, 0.25, 0.25, 0.25}, Estimate{0.25, Interval{0.0456, 0.6994}}},
		{nil, Estimate{}},
	} {
		expect.Equal(t, test.want, RateEstimate(test.rows), cmpopts.EquateApprox(0, 1e-4), test.rows)
	}
	// Several attempts at each problem: the bootstrap over problems. Quantities are no rates.
	rows := []float64{0.25, 0.75, 0.5, 0.25, 1, 0}
	expect.Equal(t, MeanEstimate(rows), RateEstimate(rows))
	expect.Same(t, Interval{}, MeanEstimate(make([]float64, 38)).Interval, "interval of equal values")
}

func TestCompareRuns(t *testing.T) {
	truth, a := classifier(7, 120, 0.6, 0.9)
	_, b := classifier(7, 120, 0.8, 0.8)
	alone := Compare(3, truth, a, b)
	expect.Equal(t, alone, CompareRuns(3, truth, [][][]float32{a, a}, [][][]float32{b, b}), "the same pair twice is not the pair")
	// Swapping the two sides must negate every resample.
	c := CompareRuns(3, truth, [][][]float32{a, b}, [][][]float32{b, a})
	want := (alone.Brier.A + alone.Brier.B) / 2
	expect.True(t, math.Abs(c.Brier.A-want) <= 1e-12 && c.Brier.Difference == 0 && c.Brier.Interval == (Interval{}), "Brier %+v, want %g on both sides and no difference", c.Brier, want)
}

// calibrated returns predictions that are right as often as their confidence says. Their calibration error is pure
// noise, which resampling adds to.
func calibrated(seed uint64, n int) (truth []int, probs [][]float32) {
	rng := Stream(seed, 5)
	for range n {
		confidence, guess := 0.4+0.6*rng.Float32(), rng.IntN(3)
		p := []float32{(1 - confidence) / 2, (1 - confidence) / 2, (1 - confidence) / 2}
		p[guess] = confidence
		if rng.Float32() >= confidence {
			guess = (guess + 1 + rng.IntN(2)) % 3
		}
		truth, probs = append(truth, guess), append(probs, p)
	}
	return truth, probs
}

// TestIntervalsContainEstimates has few rows, so nearly all resamples exceed the estimated calibration error.
func TestIntervalsContainEstimates(t *testing.T) {
	labels := []string{"x", "y", "z"}
	atAnEnd := 0
	for seed := range uint64(60) {
		truth, a := calibrated(100+seed, 40+4*int(seed))
		_, b := calibrated(200+seed, 40+4*int(seed)) // of other rows: most are wrong
		e := Evaluate(labels, truth, a)
		c, other := Compare(3, truth, a, b), Evaluate(labels, truth, b)
		for name, d := range map[string]Difference{"accuracy": {A: e.Accuracy, B: other.Accuracy}, "f1_macro": {A: e.F1Macro, B: other.F1Macro}, "ece": {A: e.ECE, B: other.ECE}, "brier": {A: e.Brier, B: other.Brier}} {
			got := map[string]Difference{"accuracy": c.Accuracy, "f1_macro": c.F1Macro, "ece": c.ECE, "brier": c.Brier}[name]
			expect.True(t, got.A == d.A && got.B == d.B && got.Difference == d.B-d.A, "%s: %+v, want A %g and B %g", name, got, d.A, d.B)
		}
		if e.Intervals.ECE[0] == e.ECE {
			atAnEnd++
		}
		for name, test := range map[string]struct {
			estimate float64
			in       Interval
		}{
			"accuracy": {e.Accuracy, e.Intervals.Accuracy}, "f1_macro": {e.F1Macro, e.Intervals.F1Macro},
			"f1_weighted": {e.F1Weighted, e.Intervals.F1Weighted}, "ece": {e.ECE, e.Intervals.ECE}, "brier": {e.Brier, e.Intervals.Brier},
			"difference of accuracy": {c.Accuracy.Difference, c.Accuracy.Interval}, "difference of f1_macro": {c.F1Macro.Difference, c.F1Macro.Interval},
			"difference of ece": {c.ECE.Difference, c.ECE.Interval}, "difference of brier": {c.Brier.Difference, c.Brier.Interval},
		} {
			expect.True(t, test.estimate >= test.in[0] && test.estimate <= test.in[1], "seed %d, %d rows: %s %g is outside %v", seed, len(truth), name, test.estimate, test.in)
		}
	}
	expect.True(t, atAnEnd != 0, "no calibration error is below the percentiles of its resamples: the test shows nothing")
}

// TestCompareMeans skips rows that miss a value, and compares the others in pairs.
func TestCompareMeans(t *testing.T) {
	nan := math.NaN()
	d := CompareMeans([]float64{1, nan, 8, 5}, []float64{2, 1, 10, nan})
	expect.Equal(t, Difference{A: 4.5, B: 6, Difference: 1.5, Interval: Interval{1, 2}}, d)
	expect.Equal(t, Difference{A: 4.5, B: 5.5, Difference: 1, Interval: Interval{1, 1}}, CompareMeans([]float64{1, 8}, []float64{2, 9}))
	expect.Same(t, Difference{}, CompareMeans([]float64{nan}, []float64{1}), "without rows")
	expect.Equal(t, Comparison{}, CompareRuns(2, []int{0}, nil, nil), "without runs")
	expect.Equal(t, Comparison{}, CompareRuns(2, nil, make([][][]float32, 1), make([][][]float32, 1)), "runs without rows")
}
