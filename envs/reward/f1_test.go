package reward

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// macroF1 of fractional counts.
func macroF1(truePositive, predicted, truth []float64) float64 {
	sum := 0.0
	for c := range truth {
		sum += 2 * truePositive[c] / (predicted[c] + truth[c])
	}
	return sum / float64(len(truth))
}

// r(a|y) − r(b|y) must be N times the effect of predicting a instead of b, to first order in the weight of the example.
func TestF1RewardIsTheDerivativeOfMacroF1(t *testing.T) {
	const epsilon = 1e-6
	rng := rand.New(rand.NewPCG(9, 10))
	f := newF1Counts(4)
	for range 300 {
		y := rng.IntN(4) * rng.IntN(2)
		a := y
		if rng.IntN(3) == 0 {
			a = rng.IntN(4)
		}
		f.observe(a, y)
	}
	n := 0.0
	for c := range f.truth {
		n += f.truth[c] + f1Prior
	}
	after := func(a, y int) float64 {
		tp, predicted, truth := make([]float64, 4), make([]float64, 4), make([]float64, 4)
		for c := range truth {
			tp[c], predicted[c], truth[c] = f.truePositive[c], f.predicted[c]+f1Prior, f.truth[c]+f1Prior
		}
		truth[y] += epsilon
		predicted[a] += epsilon
		if a == y {
			tp[y] += epsilon
		}
		return macroF1(tp, predicted, truth)
	}
	for y := range 4 {
		for a := range 4 {
			want := n * (after(a, y) - after(0, y)) / epsilon
			got := f.reward(a, y) - f.reward(0, y)
			expect.True(t, math.Abs(got-want) <= 1e-4, "r(%d|%d) − r(0|%d) = %g, the derivative is %g", a, y, y, got, want)
		}
	}
}

func TestF1RewardByHand(t *testing.T) {
	// With the prior: predicted 10+1 and 0+1, true 8+1 and 2+1, true positives 8 and 0.
	f := newF1Counts(2)
	f.truePositive = []float64{8, 0}
	f.predicted = []float64{10, 0}
	f.truth = []float64{8, 2}
	f1 := 16.0 / 20
	for _, test := range []struct {
		action, truth int
		want          float64
	}{
		{0, 0, (2 - f1) / 20 * 6}, // N = 12, C = 2
		{0, 1, -f1 / 20 * 6},
		{1, 1, 2.0 / 4 * 6},
		{1, 0, 0},
	} {
		got := f.reward(test.action, test.truth)
		expect.True(t, math.Abs(got-test.want) <= 1e-12, "r(%d|%d) = %g, want %g", test.action, test.truth, got, test.want)
	}
}

func TestF1CountsFade(t *testing.T) {
	f := newF1Counts(2)
	for range 20000 {
		f.observe(0, 0)
	}
	// Σ keep^i = 1/(1 − keep) = 400.
	for what, count := range map[string]float64{"examples": f.truth[0], "predictions": f.predicted[0], "right predictions": f.truePositive[0]} {
		expect.True(t, math.Abs(count-400) <= 1, "%g %s remembered, want 400", count, what)
	}
	for range 2000 {
		f.observe(1, 1)
	}
	expect.True(t, f.truth[0] <= 400*0.01, "%g examples of the old kind after 2000 new ones, want under 4", f.truth[0])
}
