package reward

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// outcome is what a reward is a function of.
type outcome struct {
	action, truth int
	probs         []float64
}

// number is an expression over three labels, and its value computed without the package.
type formula struct {
	text string
	at   func(o outcome) float64
}

var leaves = []formula{
	{"confidence", func(o outcome) float64 { return o.probs[o.action] }},
	{"entropy", func(o outcome) (h float64) {
		for _, p := range o.probs {
			h -= p * math.Log(p)
		}
		return h
	}},
	{"probs[0]", func(o outcome) float64 { return o.probs[0] }},
	{"probs.b", func(o outcome) float64 { return o.probs[1] }},
	{`probs["c"]`, func(o outcome) float64 { return o.probs[2] }},
	{"probs[label]", func(o outcome) float64 { return o.probs[o.truth] }},
	{"probs[predicted]", func(o outcome) float64 { return o.probs[o.action] }},
	{"correct", func(o outcome) float64 { return choose(o.action == o.truth, 1, 0) }},
	{"0.7", func(outcome) float64 { return 0.7 }},
	{"2", func(outcome) float64 { return 2 }},
	{"max(probs)", func(o outcome) float64 { return slices.Max(o.probs) }},
	{"min(probs)", func(o outcome) float64 { return slices.Min(o.probs) }},
}

func choose(first bool, x, y float64) float64 {
	if first {
		return x
	}
	return y
}

// forms are differentiable away from poles: divisors, logarithms and roots get 1 + x².
var forms = []struct {
	text string
	of   func(o outcome, x, y float64) float64
}{
	{"(%s + %s)", func(_ outcome, x, y float64) float64 { return x + y }},
	{"(%s - %s)", func(_ outcome, x, y float64) float64 { return x - y }},
	{"(%s * %s)", func(_ outcome, x, y float64) float64 { return x * y }},
	{"(%s / (1 + (%s)^2))", func(_ outcome, x, y float64) float64 { return x / (1 + y*y) }},
	{"max(%s, %s)", func(_ outcome, x, y float64) float64 { return max(x, y) }},
	{"min(%s, 0.5, %s)", func(_ outcome, x, y float64) float64 { return min(x, 0.5, y) }},
	{"(correct ? %s : -%s)", func(o outcome, x, y float64) float64 { return choose(o.action == o.truth, x, -y) }},
	{`(label == "a" or predicted in ["b", "c"] ? %s : %s)`, func(o outcome, x, y float64) float64 { return choose(o.truth == 0 || o.action > 0, x, y) }},
	{`(predicted not in ["b"] and not correct ? %s : %s)`, func(o outcome, x, y float64) float64 { return choose(o.action != 1 && o.action != o.truth, x, y) }},
	{"(0 < correct <= 1 ? %s : %s)", func(o outcome, x, y float64) float64 { return choose(o.action == o.truth, x, y) }},
	{"(exp(-(%s)**2) - abs(%s - 0.3))", func(_ outcome, x, y float64) float64 { return math.Exp(-x*x) - math.Abs(y-0.3) }},
	{"(log(1 + (%s)^2) + sqrt(1 + (%s)^2))", func(_ outcome, x, y float64) float64 { return math.Log(1+x*x) + math.Sqrt(1+y*y) }},
	{"pow(1 + (%s)^2, %s)", func(_ outcome, x, y float64) float64 { return math.Pow(1+x*x, y) }},
}

func randomNumber(rng *rand.Rand, depth int) formula {
	if depth == 0 {
		return leaves[rng.IntN(len(leaves))]
	}
	x, y, form := randomNumber(rng, depth-1), randomNumber(rng, depth-1), forms[rng.IntN(len(forms))]
	return formula{fmt.Sprintf(form.text, x.text, y.text), func(o outcome) float64 { return form.of(o, x.at(o), y.at(o)) }}
}

func randomProbs(rng *rand.Rand, n int) []float64 {
	probs, sum := make([]float64, n), 0.0
	for i := range probs {
		probs[i] = 0.05 + rng.Float64()
		sum += probs[i]
	}
	for i := range probs {
		probs[i] /= sum
	}
	return probs
}

// checkGradient compares the gradient at probs with central differences.
func checkGradient(t *testing.T, spec string, r *Labels, truth int, probs []float64) {
	t.Helper()
	const h = 1e-6
	scores, grad := r.expected([]int{truth}, probs)
	j := scores.Total[0]
	expect.Require(t, !math.IsNaN(j), "%s at %v: failed", spec, probs)
	rounding := 1e-9 * math.Abs(j) // of a difference of two J, over 2h
	for k := range probs {
		at := func(delta float64) float64 {
			moved := append([]float64(nil), probs...)
			moved[k] += delta
			scores, _ := r.expected([]int{truth}, moved)
			return scores.Total[0]
		}
		want := (at(h) - at(-h)) / (2 * h)
		expect.True(t, math.Abs(grad[k]-want) <= 1e-6*(1+math.Abs(want))+rounding, "%s, truth %d at %v: ∂J/∂π_%d = %g, by differences %g", spec, truth, probs, k, grad[k], want)
	}
}

func TestGradientAgainstDifferences(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	specs := []string{"accuracy", "f1=2", "calibration", "accuracy=0.3,f1,calibration=-2,expr:confidence*entropy=0.5", "expr:if correct { confidence } else { -confidence^2 }"}
	values := map[string]formula{}
	for range 300 {
		n := randomNumber(rng, 1+rng.IntN(3))
		specs, values["expr:"+n.text] = append(specs, "expr:"+n.text), n
	}
	for _, spec := range specs {
		r := parseLabels(t, spec, "a", "b", "c")
		if strings.Contains(spec, "f1") {
			for range 50 {
				r.Observe([]Choice{{Action: rng.IntN(3), Truth: rng.IntN(3)}}, Scores{Rewards: make([]Score, len(r.rewards))})
			}
		}
		truth, probs := rng.IntN(3), randomProbs(rng, 3)
		checkGradient(t, spec, r, truth, probs)
		if n, ok := values[spec]; ok { // J = Σ π_a·R_a
			want := 0.0
			for action, p := range probs {
				want += p * n.at(outcome{action, truth, probs})
			}
			scores, _ := r.expected([]int{truth}, probs)
			expect.True(t, math.Abs(scores.Total[0]-want) <= 1e-9*(1+math.Abs(want)), "%s, truth %d at %v: J = %g, want %g", spec, truth, probs, scores.Total[0], want)
		}
	}
}

func TestGradientAtKinks(t *testing.T) {
	probs := []float32{0.5, 0.5}
	for _, test := range []struct {
		spec string
		want []float64 // ∂J/∂π with R = 0 at this point
	}{
		{"expr:max(probs[0], probs[1]) - 0.5", []float64{1, 0}},
		{"expr:min(probs[1], probs[0]) - 0.5", []float64{0, 1}},
		{"expr:abs(probs[0] - 0.5)", []float64{0, 0}},
		{"expr:(probs[0] - 0.5)^0 - 1", []float64{0, 0}},
	} {
		scores, grad := parseLabels(t, test.spec, "a", "b").Expected([]int{0}, probs)
		expect.True(t, !math.IsNaN(scores.Total[0]) && grad[0] == test.want[0] && grad[1] == test.want[1], "%s: J = %g, gradient %v; want %v", test.spec, scores.Total[0], grad, test.want)
	}
}
