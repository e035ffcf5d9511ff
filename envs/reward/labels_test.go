package reward

import (
	"encoding/json"
	"fmt"
	"math"
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

func TestScorePanicsIfProbabilitiesAreRead(t *testing.T) {
	expect.Panic(t, func() { score(t, parseLabels(t, "accuracy,calibration", "a", "b"), 0, 0) })
}

func TestExpectedByHand(t *testing.T) {
	near := cmpopts.EquateApprox(0, 1e-12)
	probs := []float32{0.5, 0.25, 0.25} // exact in binary
	for _, test := range []struct {
		spec string
		want float64
		grad []float64
	}{
		{"accuracy=3,expr:0*confidence", 0.75, []float64{0, 3, 0}},
		// Σ(π−1[y])² = .25+.5625+.0625 = .875, R = .5625; grad = R − (π − 1[y])
		{"calibration", 0.5625, []float64{0.0625, 1.3125, 0.3125}},
		{"calibration,expr:confidence=2", 0.5625 + 0.75, []float64{2.0625, 2.3125, 1.3125}},
	} {
		r := parseLabels(t, test.spec, "a", "b", "c")
		scores, grad := r.Expected([]int{1}, probs)
		got := scores.Total[0]
		expect.True(t, math.Abs(got-test.want) <= 1e-12, "%s: J = %g, want %g", test.spec, got, test.want)
		expect.Equal(t, test.grad, grad, near, fmt.Sprintf("%s: gradient", test.spec))
	}
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
		if i == 2 != math.IsNaN(scores.Total[i]) { // log 0
			t.Errorf("sample %d: total %g", i, scores.Total[i])
		}
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
		{"expr:log(confidence - 0.5)", []float32{0.9, 0.1}, "reward expr:log(confidence - 0.5): "},
		{"expr:max(confidence, log(-1))", []float32{0.9, 0.1}, "reward expr:max(confidence, log(-1)): "},
	} {
		scores, grad := parseLabels(t, test.spec, "a", "b").Expected([]int{0}, test.probs)
		expect.True(t, math.IsNaN(scores.Total[0]) && grad[0] == 0 && grad[1] == 0, "%s at %v: J = %g, gradient %v; want a failure", test.spec, test.probs, scores.Total[0], grad)
		last := scores.Rewards[len(scores.Rewards)-1]
		expect.True(t, last.Failures == 1 && strings.HasPrefix(last.Failure, test.failure), "%s: %+v, want one failure, %q", test.spec, last, test.failure)
	}
}

func TestEntropyAtACornerIsFinite(t *testing.T) {
	scores, grad := parseLabels(t, "expr:entropy", "a", "b").Expected([]int{0}, []float32{1, 0})
	expect.True(t, scores.Total[0] == 0 && finite(grad[1]), "J = %g, gradient %v", scores.Total[0], grad)
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
	want := f1State{TruePositive: []float64{1, 0}, Predicted: []float64{2, 0}, True: []float64{1, 1}}
	var counts f1State
	must.Do(t, json.Unmarshal(r.State().States["f1"], &counts))
	if diff := cmp.Diff(want, counts, cmpopts.EquateApprox(0.01, 0)); diff != "" { // counts fade
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestRestoreRefuses(t *testing.T) {
	state := parseLabels(t, "accuracy,f1", "a", "b").State()
	broken := parseLabels(t, "accuracy,f1", "a", "b").State()
	broken.States["f1"] = json.RawMessage(strings.Replace(string(broken.States["f1"]), `"predicted":[0,0]`, `"predicted":[0,-1]`, 1))
	without := State{Rewards: state.Rewards}
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
		{"accuracy,f1", []string{"a", "b"}, broken, "invalid count -1"},
	} {
		r := parseLabels(t, test.spec, test.labels...)
		before := r.State()
		expect.Error(t, r.Restore(test.state), test.want)
		expect.Equal(t, before, r.State(), fmt.Sprintf("%s: a refused state has changed it", test.spec))
	}
}
