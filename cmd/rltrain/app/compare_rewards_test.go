package app

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestCompareByRewards scores two models' completions of the same prompts with a classifier and an expression.
func TestCompareByRewards(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/p.jsonl", `{"prompt": "one "}`+"\n"+`{"prompt": "two "}`+"\n"+`{"prompt": "`+strings.Repeat("long ", 40)+`"}`+"\n"+`{"prompt": "`+strings.Repeat("long ", 4000)+`"}`+"\n")
	for name, seed := range map[string]uint64{"TMP/a": 1, "TMP/b": 2} {
		must.Do(t, policy.TinyModel(f.expand(name), 1, 32, seed))
	}
	critic := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolMean, "bad", "good")
	compare := "compare --task preference --dataset TMP/p.jsonl --threads 1 --max-new-tokens 3 --output TMP/c.json "
	read := func() (r rewardComparison) {
		t.Helper()
		must.Do(t, files.LoadJSON(f.expand("TMP/c.json"), &r))
		return r
	}
	stdout := f.must(t, "", strings.Fields(compare+"--reward model:"+critic+"#good -n 4 TMP/a TMP/b")...)
	r := read()
	if r.Prompts != 2 || r.TooLong != 1 || r.Failed != 1 || r.Mean.A <= 0 || r.Mean.A == r.Mean.B || !strings.Contains(stdout, "skipped 1 prompts that leave no room") {
		t.Errorf("%+v\n%s", r, stdout)
	}
	f.must(t, "", strings.Fields(compare+"--reward expr:'length' TMP/a TMP/a")...)
	r = read()
	expect.True(t, r.Mean.Difference == 0 && r.Wins.Value == 0.5 && r.Mean.A == 3, "a model compared with itself: %+v", r)
	for args, want := range map[string]string{
		compare + "TMP/a TMP/b":                                                                            "needs --dataset FILE with prompts, and --reward",
		compare + "--reward model:TMP/nowhere TMP/a TMP/b":                                                 "--reward: ",
		compare + "--reward accuracy TMP/a TMP/b":                                                          "--reward: ",
		compare + "--reward rubric:TMP/nowhere TMP/a TMP/b":                                                "--reward: ",
		compare + "--reward expr:'length' --judge TMP/a TMP/a TMP/b":                                       "--judge: no reward of expr:'length' uses a judge",
		compare + "--reward expr:'length' --n 0 TMP/a TMP/b":                                               "--n: 0 is out of range",
		compare + "--reward expr:'length' --model TMP/a TMP/a TMP/b":                                       "name two folders of models or adapters",
		strings.Replace(compare, "new-tokens 3", "new-tokens x", 1) + "--reward expr:'length' TMP/a TMP/b": "--max-new-tokens: \"x\"",
	} {
		if code, _, stderr := f.rltrain("", strings.Fields(args)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, error %q; want …%s…", args, code, stderr, want)
		}
	}
	code, _, stderr := f.rltrain("", strings.Fields("compare --task sum_digits --reward expr:'length' TMP/a TMP/b")...)
	expect.True(t, code == 2 && strings.Contains(stderr, "--reward: does not apply to task sum_digits"), "exit code %d, %q", code, stderr)
}
