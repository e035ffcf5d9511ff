package reward

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

var nan = math.NaN()

func parseLabels(t testing.TB, spec string, labels ...string) *Labels {
	t.Helper()
	return must.Get(ParseLabels(spec, labels, Options{}))(t)
}

// score is the total of one choice, NaN if it failed.
func score(t testing.TB, r *Labels, action, truth int) float64 {
	t.Helper()
	scores := must.Get(r.Score(t.Context(), []Choice{{Action: action, Truth: truth}}))(t)
	return scores.Total[0]
}

func TestScore(t *testing.T) {
	labels := []string{"law", "math", "other"}
	for _, test := range []struct {
		spec          string
		action, truth int
		want          float64
	}{
		{"accuracy", 1, 1, 1},
		{"accuracy", 1, 0, 0},
		{"accuracy=-2.5", 1, 1, -2.5},
		{"f1", 1, 1, 1},
		{"f1", 1, 0, 0},
		{"accuracy,f1=0.5", 2, 2, 1.5},
		{"expr:'correct - 0.5*(1 - correct)'", 0, 1, -0.5},
		{"expr:correct ? 2 : -1", 0, 0, 2},
		{`accuracy,expr:'label in ["law", "math"] and not correct ? -1 : 0'=0.25`, 2, 0, -0.25},
		{`expr:'predicted == "other" && label != predicted ? 1 : 0'`, 2, 0, 1},
		{`expr:'label == predicted'=2`, 2, 2, 2},
		{`expr:'not correct'`, 2, 2, 0},
		{"expr:true ? 2 : 3", 0, 1, 2},
		{"expr:false", 0, 0, 0},
		{"expr:+correct", 0, 0, 1},
		{`expr:'(label == "law") == (label in ["law"]) ? 1 : 0'`, 0, 0, 1},
	} {
		r := parseLabels(t, test.spec, labels...)
		expect.True(t, !r.ReadsProbs(), "%s: reads probabilities", test.spec)
		expect.Same(t, test.want, score(t, r, test.action, test.truth), "%s: action %d for truth %d scores", test.spec, test.action, test.truth)
	}
}

func TestReadsProbs(t *testing.T) {
	for spec, want := range map[string]bool{
		"accuracy": false, "f1": false, "calibration": true, "accuracy,calibration=0.1": true,
		"expr:correct": false, "expr:confidence": true, "expr:1+entropy*0": true,
		"expr:probs[0]": true, "expr:max(probs)": true, "expr:correct ? log(probs[label]) : 0": true,
		`expr:label == "a" ? 1 : 0`: false,
	} {
		expect.Same(t, want, parseLabels(t, spec, "a", "b").ReadsProbs(), "%s: ReadsProbs", spec)
	}
}

func TestMisusePanics(t *testing.T) {
	r := parseLabels(t, "accuracy,calibration", "a", "b")
	expect.Panic(t, func() { score(t, r, 0, 0) }, "Score with probabilities")
	expect.Panic(t, func() { r.Expected([]int{0}, []float32{1, 0, 0}) }, "three probabilities of two labels")
	expect.Panic(t, func() { parseLabels(t, "accuracy,cmd:cat", "a").Expected([]int{0}, []float32{1}) }, "Expected with a program")
}

// TestExpectedByHand: Σ(π−1[y])² = .25+.5625+.0625 = .875, so the calibration is .5625 and its gradient .5625 − (π − 1[y]).
func TestExpectedByHand(t *testing.T) {
	scores, grad := parseLabels(t, "calibration,expr:confidence=2", "a", "b", "c").Expected([]int{1}, []float32{0.5, 0.25, 0.25})
	expect.Equal(t, 0.5625+0.75, scores.Total[0], cmpopts.EquateApprox(0, 1e-12))
	expect.Equal(t, []float64{2.0625, 2.3125, 1.3125}, grad, cmpopts.EquateApprox(0, 1e-12), "gradient")
}

func TestExpectedOfSampledRewardsIsTheMeanScore(t *testing.T) {
	for _, spec := range []string{"accuracy", "f1=2", "accuracy,f1,expr:'predicted == \"b\" ? -0.3 : 0.1'=2"} {
		r := parseLabels(t, spec, "a", "b", "c")
		for i := range 20 {
			r.Observe([]Choice{{Action: i % 2, Truth: i % 3}}, Scores{Rewards: make([]Score, len(r.rewards))})
		}
		probs := []float64{0.2, 0.5, 0.3}
		want, rewards := 0.0, make([]float64, 3)
		for a, p := range probs {
			rewards[a] = score(t, r, a, 2)
			want += p * rewards[a]
		}
		scores, grad := r.expected([]int{2}, probs)
		got := scores.Total[0]
		expect.True(t, math.Abs(got-want) <= 1e-12, "%s: J = %g, want %g", spec, got, want)
		expect.Equal(t, rewards, grad, cmpopts.EquateApprox(0, 1e-12), fmt.Sprintf("%s: gradient", spec))
	}
}

func TestExpectedOfABatchIsThatOfItsSamples(t *testing.T) {
	r := parseLabels(t, "calibration,expr:log(probs[label])=0.5,f1", "a", "b")
	truths, probs := []int{0, 1, 1, 0}, []float32{0.25, 0.75, 0.5, 0.5, 1, 0, 0.125, 0.875}
	scores, grad := r.Expected(truths, probs)
	for i := range truths {
		one, slope := r.Expected(truths[i:i+1], probs[2*i:2*i+2])
		expect.True(t, i == 2 == math.IsNaN(scores.Total[i]), "sample %d: total %g", i, scores.Total[i]) // log 0
		expect.Equal(t, one.Total[0], scores.Total[i], cmpopts.EquateNaNs(), fmt.Sprintf("sample %d: total", i))
		expect.Equal(t, slope, grad[2*i:2*i+2], fmt.Sprintf("sample %d: gradient", i))
	}
}

func TestFailedLabelRewardsAreMissingAndCounted(t *testing.T) {
	r := parseLabels(t, "accuracy,expr:1/correct", "a", "b")
	got := must.Get(r.Score(t.Context(), []Choice{{Action: 0, Truth: 1}, {Action: 1, Truth: 1}, {Action: 0, Truth: 0}}))(t)
	want := Scores{
		Total: []float64{nan, 2, 2},
		Rewards: []Score{
			{Name: "accuracy", Weight: 1, Values: []float64{0, 1, 1}, N: 3, Mean: 2. / 3, Std: math.Sqrt(1. / 3)},
			{Name: "expr:1/correct", Weight: 1, Values: []float64{nan, 1, 1}, N: 2, Mean: 1, Failures: 1, Failure: "reward expr:1/correct: the value is +Inf"},
		},
	}
	expect.Equal(t, want, got, cmpopts.EquateNaNs(), cmpopts.EquateApprox(0, 1e-12))

	for _, test := range []struct {
		spec    string
		probs   []float32
		failure string
	}{
		{"calibration,expr:log(confidence)", []float32{1, 0}, "reward expr:log(confidence): the value is NaN"},
		{"expr:sqrt(probs[1])", []float32{1, 0}, "reward expr:sqrt(probs[1]): the gradient is not finite"},
		{"expr:exp(1000*confidence)", []float32{0.9, 0.1}, "reward expr:exp(1000*confidence): "},
		{"calibration", []float32{float32(math.NaN()), 0}, "reward calibration: "},
		{"expr:(probs[0] - 1)^probs[1]", []float32{1, 0}, "reward expr:(probs[0] - 1)^probs[1]: the gradient is not finite"},
		{"expr:log(confidence - 0.5)", []float32{0.9, 0.1}, "reward expr:log(confidence - 0.5): "},
		{"expr:max(confidence, log(-1))", []float32{0.9, 0.1}, "reward expr:max(confidence, log(-1)): "},
		{"expr:0^(probs[1] - 0.5)", []float32{0.5, 0.5}, "reward expr:0^(probs[1] - 0.5): the gradient is not finite"},
	} {
		scores, grad := parseLabels(t, test.spec, "a", "b").Expected([]int{0}, test.probs)
		expect.True(t, math.IsNaN(scores.Total[0]) && grad[0] == 0 && grad[1] == 0, "%s at %v: J = %g, gradient %v; want a failure", test.spec, test.probs, scores.Total[0], grad)
		last := scores.Rewards[len(scores.Rewards)-1]
		expect.True(t, last.Failures == 1 && strings.HasPrefix(last.Failure, test.failure), "%s: %+v, want one failure, %q", test.spec, last, test.failure)
	}
}

func TestEntropyAtACornerIsFinite(t *testing.T) {
	scores, grad := parseLabels(t, "expr:entropy", "a", "b").Expected([]int{0}, []float32{1, 0})
	expect.Same(t, 0, scores.Total[0], "J")
	expect.Equal(t, []float64{-1, -math.Log(math.SmallestNonzeroFloat32) - 1}, grad, "gradient")
}

// A rollout is scored again in each update epoch, and a validation set now and then: only Observe may change a reward.
func TestLookingObservesNothing(t *testing.T) {
	r := parseLabels(t, "f1,expr:0*confidence", "a", "b")
	sampled := parseLabels(t, "f1", "a", "b")
	truths, probs := []int{0, 1}, []float32{0.75, 0.25, 0.5, 0.5}
	rollout := []Choice{{Action: 0, Truth: 0}, {Action: 0, Truth: 1}}
	before, _ := r.Expected(truths, probs)
	for range 5 {
		again, _ := r.Expected(truths, probs)
		diff := cmp.Diff(before, again)
		expect.Require(t, diff == "", "the same rollout again (-first +now):\n%s", diff)
		got := score(t, sampled, 0, 0)
		expect.Require(t, got == 1, "a right choice scores %g before anything is observed, want 1", got)
	}
	r.Observe(rollout, before)
	after, _ := r.Expected(truths, probs)
	expect.True(t, !cmp.Equal(before.Total, after.Total), "observing a rollout changes nothing")
	const keep = 1 - 1./400 // the first choice has faded once
	want := f1State{TruePositive: []float64{keep, 0}, Predicted: []float64{keep + 1, 0}, True: []float64{keep, 1}}
	expect.Equal(t, want, must.Into[f1State](t, json.Unmarshal, []byte(r.State().States["f1"])), cmpopts.EquateApprox(0, 1e-12), "counts")
}

func TestRestoreRefuses(t *testing.T) {
	state := parseLabels(t, "accuracy,f1", "a", "b").State()
	broken := parseLabels(t, "accuracy,f1", "a", "b").State()
	broken.States["f1"] = json.RawMessage(strings.Replace(string(broken.States["f1"]), `"predicted":[0,0]`, `"predicted":[0,-1]`, 1))
	without := State{Rewards: state.Rewards}
	unread := State{Rewards: state.Rewards, States: map[string]json.RawMessage{"f1": json.RawMessage("[]")}}
	more := State{Rewards: []string{"accuracy"}, States: map[string]json.RawMessage{"accuracy": json.RawMessage("1")}}
	must.Do(t, parseLabels(t, "accuracy,f1", "a", "b").Restore(state))
	for _, test := range []struct {
		spec   string
		labels []string
		state  State
		want   string
	}{
		{"accuracy", []string{"a", "b"}, state, `the checkpoint has rewards ["accuracy" "f1"], the run has ["accuracy"]`},
		{"f1,accuracy", []string{"a", "b"}, state, `the run has ["f1" "accuracy"]`},
		{"accuracy,f1", []string{"a", "b", "c"}, state, "2 entries"},
		{"accuracy,f1", []string{"a", "b"}, without, `the state of "f1" is missing`},
		{"accuracy,f1", []string{"a", "b"}, broken, "field predicted has the invalid count -1"},
		{"accuracy,f1", []string{"a", "b"}, unread, `restoring reward "f1": json`},
		{"accuracy", []string{"a", "b"}, more, `the state of "accuracy" is missing or unexpected`},
	} {
		r := parseLabels(t, test.spec, test.labels...)
		before := r.State()
		expect.Error(t, r.Restore(test.state), test.want)
		expect.Equal(t, before, r.State(), fmt.Sprintf("%s: a refused state has changed it", test.spec))
	}
}

// macroF1 of fractional counts.
func macroF1(truePositive, predicted, truth []float64) float64 {
	sum := 0.0
	for c := range truth {
		sum += 2 * truePositive[c] / (predicted[c] + truth[c])
	}
	return sum / float64(len(truth))
}

// r(a|y) must be N times the effect of predicting a for one of the examples of y, to first order in its weight.
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
	after := func(a, y int, weight float64) float64 {
		tp, predicted, truth := slices.Clone(f.truePositive), make([]float64, 4), make([]float64, 4)
		for c := range truth {
			predicted[c], truth[c] = f.predicted[c]+f1Prior, f.truth[c]+f1Prior
		}
		predicted[a] += weight
		if a == y {
			tp[y] += weight
		}
		return macroF1(tp, predicted, truth)
	}
	for y := range 4 {
		for a := range 4 {
			want := n * (after(a, y, epsilon) - after(a, y, 0)) / epsilon
			got := f.reward(a, y)
			expect.True(t, math.Abs(got-want) <= 1e-4, "r(%d|%d) = %g, the derivative is %g", a, y, got, want)
		}
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
	{"(correct >= 1 or correct > 1 ? %s : %s)", func(o outcome, x, y float64) float64 { return choose(o.action == o.truth, x, y) }},
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
		{"expr:0^probs[1]", []float64{0, 0}},
	} {
		scores, grad := parseLabels(t, test.spec, "a", "b").Expected([]int{0}, probs)
		expect.True(t, !math.IsNaN(scores.Total[0]) && grad[0] == test.want[0] && grad[1] == test.want[1], "%s: J = %g, gradient %v; want %v", test.spec, scores.Total[0], grad, test.want)
	}
}
