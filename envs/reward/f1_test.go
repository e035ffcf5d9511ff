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

// cell is an input of the 9:1 problem: its frequency, and the probability of label 1.
type cell struct{ share, rare float64 }

// imbalanced has P(label 1) = 0.8·0.02 + 0.12·0.32 + 0.08·0.45 ≈ 0.09. Label 1 is never the more likely one, so accuracy is
// highest for always answering 0; macro F1 is highest for answering 1 on the last two cells.
var imbalanced = []cell{{0.8, 0.02}, {0.12, 0.32}, {0.08, 0.45}}

// reinforce trains a table policy, one logit per cell, by REINFORCE with a running baseline. It returns the exact macro F1
// and accuracy of the greedy policy.
func reinforce(t *testing.T, spec string) (f1, accuracy float64) {
	t.Helper()
	r := parseLabels(t, spec, "common", "rare")
	rng := rand.New(rand.NewPCG(11, 12))
	logits := make([]float64, len(imbalanced))
	baseline := make([]float64, len(imbalanced))
	const steps = 60000
	for step := range steps {
		x, u := 0, rng.Float64()
		for u > imbalanced[x].share && x < len(imbalanced)-1 {
			u -= imbalanced[x].share
			x++
		}
		truth, action := 0, 0
		if rng.Float64() < imbalanced[x].rare {
			truth = 1
		}
		p := 1 / (1 + math.Exp(-logits[x]))
		if rng.Float64() < p {
			action = 1
		}
		advantage := score(t, r, action, truth) - baseline[x]
		r.Observe([]Choice{{Action: action, Truth: truth}}, Scores{Rewards: make([]Score, 1)})
		baseline[x] += 0.01 * advantage
		rate := 0.1 * (1 - float64(step)/steps)
		logits[x] += rate * advantage * (float64(action) - p)
	}
	tp, predicted, truth := make([]float64, 2), make([]float64, 2), make([]float64, 2)
	for x, c := range imbalanced {
		answer := 0
		if logits[x] > 0 {
			answer = 1
		}
		chance := []float64{1 - c.rare, c.rare}
		predicted[answer] += c.share
		tp[answer] += c.share * chance[answer]
		for y := range truth {
			truth[y] += c.share * chance[y]
		}
	}
	return macroF1(tp, predicted, truth), tp[0] + tp[1]
}

func TestF1RewardBeatsAccuracyOnNineToOne(t *testing.T) {
	plainF1, plainAccuracy := reinforce(t, "accuracy")
	f1, accuracy := reinforce(t, "f1")
	t.Logf("accuracy reward: macro F1 %.3f, accuracy %.3f; f1 reward: macro F1 %.3f, accuracy %.3f", plainF1, plainAccuracy, f1, accuracy)
	expect.True(t, f1 >= plainF1+0.1, "macro F1 is %.3f with the f1 reward and %.3f with accuracy; want at least .1 more", f1, plainF1)
	expect.True(t, plainAccuracy >= accuracy, "accuracy is %.3f with the accuracy reward and %.3f with f1", plainAccuracy, accuracy)
}
