package app

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch/transformers"
)

// surest is the probability that predict gives the most likely label.
func surest(t *testing.T, f folders, text string) float64 {
	t.Helper()
	var answer struct{ Probability float64 }
	must.Do(t, json.Unmarshal([]byte(f.must(t, text, "predict", "--model", "MODEL", "--json")), &answer))
	return answer.Probability
}

func TestPredictRejects(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	label, _, _ := strings.Cut(f.must(t, "the cat", "predict", "--model", "MODEL"), "\t")
	p := surest(t, f, "the cat")
	for _, test := range []struct {
		least    float64
		rejected bool
	}{{0, false}, {p - 1e-4, false}, {p + 1e-4, true}, {1, true}} {
		at := fmt.Sprint(test.least)
		want := fmt.Sprintf("%s\t%.4f\n", label, p)
		if test.rejected {
			want = fmt.Sprintf("%s\t%.4f\n", rejected, p)
		}
		expect.Same(t, want, f.must(t, "the cat", "predict", "--model", "MODEL", "--rejection", at), "--rejection %s", at)
		var answer prediction
		must.Do(t, json.Unmarshal([]byte(f.must(t, "the cat", "predict", "--model", "MODEL", "--json", "--rejection", at)), &answer))
		expect.True(t, answer.Rejected == test.rejected && answer.Label == label, "--rejection %s: %+v", at, answer)
	}
	for _, wrong := range []string{"1.5", "-0.1", "NaN"} {
		f.usage(t, "--rejection: ", "predict", "--model", "MODEL", "--rejection", wrong)
	}
}

func TestEvalOutOfScope(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	texts := []string{"the cat", "a dog ?", "is the horse a cat", "the judge", "a court is the law", "light is a wave", "the force", "a wave"}
	rows := "text,label,split\n"
	var in, out [2][]rl.Sureness // of val, of test
	for i, text := range append(texts, texts...) {
		part := i / len(texts)
		label, kind := labels[i%len(labels)], &in[part]
		if i%len(texts)%4 == 3-part {
			label, kind = "other", &out[part]
		}
		rows += fmt.Sprintf("%s,%s,%s\n", text, label, []string{"val", "test"}[part])
		answer, _, _ := strings.Cut(f.must(t, text, "predict", "--model", "MODEL"), "\t")
		*kind = append(*kind, rl.Sureness{P: float32(surest(t, f, text)), Right: answer == label})
	}
	f.write(t, "TMP/scope.csv", rows)
	args := []string{"eval", "--model", "MODEL", "--dataset", "TMP/scope.csv", "--output-dir", "TMP/out"}
	threshold := must.Get(rl.RejectionThreshold(in[0], out[0]))(t)
	for _, test := range []struct {
		more      []string
		threshold float64
		chosen    string
	}{{nil, threshold, "val"}, {[]string{"--rejection", "0.36"}, 0.36, ""}} {
		printed := f.must(t, "", append(append(args, "--out-of-scope-label", "other"), test.more...)...)
		var results shared.LabelResults
		must.JSON(t, f.expand("TMP/out/logs/eval_results.json"), &results)
		want := must.Get(rl.MeasureOutOfScope(test.threshold, in[1], out[1]))(t)
		got := results.OutOfScope
		if got == nil || got.N != 2 || got.InScope != 6 || results.N != 6 || got.Chosen != test.chosen || got.Label != "other" ||
			math.Abs(got.Threshold-test.threshold) > 1e-6 || got.Recall != want.Recall || got.FalseAlarms != want.FalseAlarms || got.Accuracy != want.Accuracy || got.AUROC != want.AUROC {
			t.Errorf("%+v, want %+v", got, want)
		}
		expect.True(t, len(results.Selective) >= 2 && results.Selective[0].Accuracy == results.Accuracy, "selective accuracy %+v of %v", results.Selective, results.Accuracy)
		expect.Contains(t, printed, "2 texts out of scope (other)", "surest texts")
	}
	for _, test := range []struct{ more, want string }{
		{"--rejection 0.5", "needs --out-of-scope-label"},
		{"--out-of-scope-label other --rejection 2", "it must be 0 to 1"},
		{"--out-of-scope-label " + labels[0], "is a label of the model"},
		{"--out-of-scope-label nothing", `has 0 rows with label`},
		{"--out-of-scope-label other --split val", "pass --rejection"},
	} {
		f.usage(t, test.want, append(args, strings.Fields(test.more)...)...)
	}
}
