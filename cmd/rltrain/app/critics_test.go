package app

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestModelsAsRewards trains language models and classifiers on a classifier's score.
func TestModelsAsRewards(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.questions(t, "TMP/q.jsonl", 20)
	critic := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolMean, "bad", "good")
	short := func(spec string) []string {
		return strings.Fields(f.expand(`train --task prompts --dataset TMP/q.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 2 --output-dir TMP
			--eval-samples 4 --fresh-samples 0 --num-steps 2 --eval-every 2 --prompts-per-step 2 --samples-per-prompt 4 --reward ` + spec))
	}
	f.must(t, "", short("model:"+critic+"#good=2,expr:'length'")...)
	refused := func(want string, args ...string) {
		t.Helper()
		if code, _, stderr := f.rltrain("", args...); code != 2 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d, error %q; want 2, …%s…", args, code, stderr, want)
		}
	}
	for spec, want := range map[string]string{
		"model:" + critic:           `--reward: reward "model:` + critic,
		"model:" + critic + "#fine": `has no label "fine"`,
		"model:TMP/nowhere":         "nowhere",
		"rubric:TMP/q.jsonl":        "not a list of questions and weights",
	} {
		refused(want, short(f.expand(spec))...)
	}
	f.write(t, "TMP/rubric.yaml", "- question: Is it right?\n")
	refused("rubric.yaml asks a language model: name one with --judge", short(f.expand("rubric:TMP/rubric.yaml"))...)
	refused("--judge: no reward asks a judge: add --reward rubric:FILE", strings.Fields(f.expand("train --task sum_digits --judge TMP/x --output-dir TMP"))...)
}
