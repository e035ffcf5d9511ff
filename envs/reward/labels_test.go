package reward

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func parseRewards(t testing.TB, spec string, labels ...string) *Rewards {
	t.Helper()
	r, err := ParseRewards(spec, labels)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestScore(t *testing.T) {
	labels := []string{"law", "math", "other"}
	tests := []struct {
		spec          string
		action, truth int
		want          float32
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
	}
	for _, test := range tests {
		r := parseRewards(t, test.spec, labels...)
		if r.ReadsProbs() {
			t.Errorf("%s: reads probabilities", test.spec)
		}
		if got, ok := r.Score(test.action, test.truth); !ok || got != test.want {
			t.Errorf("%s: Score(%d, %d) = %g, %t; want %g", test.spec, test.action, test.truth, got, ok, test.want)
		}
	}
}

func TestReadsProbs(t *testing.T) {
	for spec, want := range map[string]bool{
		"accuracy": false, "f1": false, "calibration": true, "accuracy,calibration=0.1": true,
		"expr:correct": false, "expr:confidence": true, "expr:1+entropy*0": true,
		"expr:probs[0]": true, "expr:max(probs)": true, "expr:correct ? log(probs[label]) : 0": true,
		`expr:label == "a" ? 1 : 0`: false,
	} {
		if got := parseRewards(t, spec, "a", "b").ReadsProbs(); got != want {
			t.Errorf("%s: ReadsProbs %t, want %t", spec, got, want)
		}
	}
}

func TestScorePanicsWhereProbabilitiesAreRead(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	parseRewards(t, "accuracy,calibration", "a", "b").Score(0, 0)
}

func TestExpectedByHand(t *testing.T) {
	near := cmpopts.EquateApprox(0, 1e-12)
	probs := []float32{0.5, 0.25, 0.25} // exact in binary
	tests := []struct {
		spec string
		want float64
		grad []float64
	}{
		{"accuracy,expr:0*confidence", 0.25, []float64{0, 1, 0}},
		{"accuracy=3,expr:0*confidence", 0.75, []float64{0, 3, 0}},
		// Σ(π−1[y])² = .25+.5625+.0625 = .875, R = .5625; grad = R − (π − 1[y])
		{"calibration", 0.5625, []float64{0.0625, 1.3125, 0.3125}},
		// J = Σ π_a² and its gradient 2π
		{"expr:confidence", 0.375, []float64{1, 0.5, 0.5}},
		// R = log π_y for every a: J = log π_y·Σπ
		{"expr:log(probs[label])", math.Log(0.25), []float64{math.Log(0.25), math.Log(0.25) + 4, math.Log(0.25)}},
		// R = H: grad = H − log π − 1
		{"expr:entropy", 1.5 * math.Ln2, []float64{2.5*math.Ln2 - 1, 3.5*math.Ln2 - 1, 3.5*math.Ln2 - 1}},
		// R = the highest probability, that of label 0
		{"expr:max(probs)", 0.5, []float64{1.5, 0.5, 0.5}},
		// R_a = [a=y]·probs["c"]: J = π_y·π_c
		{`expr:correct*probs.c`, 0.0625, []float64{0, 0.25, 0.25}},
		{`expr:correct*probs["c"]`, 0.0625, []float64{0, 0.25, 0.25}},
		{"calibration,expr:confidence=2", 0.5625 + 0.75, []float64{2.0625, 2.3125, 1.3125}},
	}
	for _, test := range tests {
		r := parseRewards(t, test.spec, "a", "b", "c")
		grad := []float64{9, 9, 9}
		got, ok := r.Expected(1, probs, grad)
		if !ok || math.Abs(got-test.want) > 1e-12 {
			t.Errorf("%s: J = %g, %t; want %g", test.spec, got, ok, test.want)
		}
		if diff := cmp.Diff(test.grad, grad, near); diff != "" {
			t.Errorf("%s: gradient (-want +got):\n%s", test.spec, diff)
		}
	}
}

func TestExpectedOfSampledRewardsIsTheMeanScore(t *testing.T) {
	for _, spec := range []string{"accuracy", "f1=2", "accuracy,f1,expr:'predicted == \"b\" ? -0.3 : 0.1'=2"} {
		probs := []float64{0.2, 0.5, 0.3}
		want, rewards := 0.0, make([]float64, 3)
		warm := func() *Rewards {
			r := parseRewards(t, spec, "a", "b", "c")
			for i := range 20 {
				r.Score(i%2, i%3)
			}
			return r
		}
		for a, p := range probs {
			score, _ := warm().Score(a, 2)
			rewards[a] = float64(score)
			want += p * float64(score)
		}
		grad := make([]float64, 3)
		got, ok := warm().expected(2, probs, grad)
		if !ok || math.Abs(got-want) > 1e-6 {
			t.Errorf("%s: J = %g, %t; want %g", spec, got, ok, want)
		}
		if diff := cmp.Diff(rewards, grad, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
			t.Errorf("%s: gradient (-want +got):\n%s", spec, diff)
		}
	}
}

func TestFailedRewardsAreMissingAndCounted(t *testing.T) {
	r := parseRewards(t, "accuracy,expr:1/correct", "a", "b")
	if got, ok := r.Score(0, 1); ok {
		t.Errorf("1/0 scored %g", got)
	}
	if got, ok := r.Score(1, 1); !ok || got != 2 {
		t.Errorf("got %g, %t; want 2", got, ok)
	}
	want := []RewardStats{
		{Name: "accuracy", Weight: 1, N: 2, Mean: 0.5, Std: 0.5},
		{Name: "expr:1/correct", Weight: 1, N: 1, Mean: 1, Failures: 1},
	}
	if diff := cmp.Diff(want, r.Stats()); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
	r.ResetStats()
	if s := r.Stats()[1]; s.N != 0 || s.Failures != 0 || s.Std != 0 {
		t.Errorf("after ResetStats: %+v", s)
	}

	for _, test := range []struct {
		spec  string
		probs []float32
	}{
		{"calibration,expr:log(confidence)", []float32{1, 0}},
		{"expr:sqrt(probs[1])", []float32{1, 0}}, // finite value, infinite slope
		{"expr:exp(1000*confidence)", []float32{0.9, 0.1}},
		{"calibration", []float32{float32(math.NaN()), 0}},
		{"expr:log(confidence - 0.5)", []float32{0.9, 0.1}},
		{"expr:max(confidence, log(-1))", []float32{0.9, 0.1}},
	} {
		r := parseRewards(t, test.spec, "a", "b")
		grad := []float64{7, 7}
		got, ok := r.Expected(0, test.probs, grad)
		if ok || got != 0 || grad[0] != 0 || grad[1] != 0 {
			t.Errorf("%s at %v: J = %g, %t, gradient %v; want a failure", test.spec, test.probs, got, ok, grad)
		}
		if stats := r.Stats(); stats[len(stats)-1].Failures != 1 {
			t.Errorf("%s: %+v, want one failure", test.spec, stats)
		}
	}
}

func TestEntropyAtACornerIsFinite(t *testing.T) {
	r := parseRewards(t, "expr:entropy", "a", "b")
	grad := make([]float64, 2)
	if got, ok := r.Expected(0, []float32{1, 0}, grad); !ok || got != 0 || !finite(grad[1]) {
		t.Errorf("J = %g, %t, gradient %v", got, ok, grad)
	}
}

func TestRewardsStateRoundTrip(t *testing.T) {
	const spec = "accuracy,f1=0.5,expr:'1/(correct + 0.3*(predicted == \"c\" ? -1 : 1))'"
	labels := []string{"a", "b", "c"}
	rng := rand.New(rand.NewPCG(1, 2))
	play := func(r *Rewards, rng *rand.Rand, n int) (scores []float32) {
		for range n {
			score, _ := r.Score(rng.IntN(3), rng.IntN(3))
			scores = append(scores, score)
		}
		return scores
	}
	r := parseRewards(t, spec, labels...)
	play(r, rng, 500)
	encoded, err := json.Marshal(r.State())
	if err != nil {
		t.Fatal(err)
	}
	var state RewardsState
	if err := json.Unmarshal(encoded, &state); err != nil {
		t.Fatal(err)
	}
	restored := parseRewards(t, spec, labels...)
	if err := restored.Restore(state); err != nil {
		t.Fatal(err)
	}
	want := play(r, rand.New(rand.NewPCG(3, 4)), 100)
	got := play(restored, rand.New(rand.NewPCG(3, 4)), 100)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("scores after restoring differ:\n%s", diff)
	}
	if diff := cmp.Diff(r.State(), restored.State()); diff != "" {
		t.Errorf("states differ:\n%s", diff)
	}
}

func TestRewardsRestoreRefusesOtherRewards(t *testing.T) {
	state := parseRewards(t, "accuracy,f1", "a", "b").State()
	for _, test := range []struct {
		spec   string
		labels []string
		want   string
	}{
		{"accuracy", []string{"a", "b"}, "2 rewards"},
		{"f1,accuracy", []string{"a", "b"}, `"accuracy" in place 1`},
		{"accuracy,f1", []string{"a", "b", "c"}, "2 entries for 3 labels"},
	} {
		err := parseRewards(t, test.spec, test.labels...).Restore(state)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.spec, err, test.want)
		}
	}
}

func BenchmarkExpected(b *testing.B) {
	labels := strings.Split("abcdefghijklmn", "")
	probs := make([]float32, len(labels))
	for i := range probs {
		probs[i] = 1 / float32(len(probs))
	}
	grad := make([]float64, len(labels))
	for name, spec := range map[string]string{
		"calibration": "calibration",
		"expr":        "expr:'correct - 0.5*(1 - correct)*confidence + 0.01*entropy'",
	} {
		b.Run(name, func(b *testing.B) {
			r := parseRewards(b, spec, labels...)
			b.ReportAllocs()
			for b.Loop() {
				r.Expected(3, probs, grad)
			}
		})
	}
}
