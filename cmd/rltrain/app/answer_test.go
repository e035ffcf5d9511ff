package app

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

func TestAnswer(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{`\frac{1}{2}`, "0.5"}, "equal\ngold    (1/2)\nanswer  1/2≈0.5\nfound   whole\nrule    numbers\n"},
		{[]string{"2x+z=1", "1"}, "different\ngold    ((2·x) + z) = 1\nanswer  1\nfound   whole\nrule    a relation against a value\n"},
		{[]string{`so \boxed{18}`, "We add them. The answer is: 18 apples (3 red)."}, "equal\ngold    18\nanswer  18 [apple]\nfound   phrase\nrule    numbers, a unit on one side\n"},
		{[]string{"--answer-match", "numeric", "18", "18 apples"}, "different\ngold    18\nanswer  18 apples\nfound   whole\nrule    numeric\n"},
		{[]string{"--", "-3", `-\frac{6}{2}`}, "equal\ngold    -3\nanswer  (-1·(6/2))\nfound   whole\nrule    numbers\n"},
	} {
		got := f.must(t, "", append([]string{"answer"}, test.args...)...)
		expect.True(t, got == test.want, "%q:\n%s", test.args, cmp.Diff(test.want, got))
	}
	for _, test := range []struct{ args, want string }{
		{"1", "answer needs 2 arguments, GOLD ANSWER, not 1"},
		{"--answer-match fuzzy 1 2", `--answer-match: unknown answer match "fuzzy"; choose numeric, exact, units or math`},
	} {
		code, _, stderr := f.rltrain("", append([]string{"answer"}, strings.Fields(test.args)...)...)
		expect.True(t, code == shared.ExitUsage && stderr == "rltrain: "+test.want+"\n", "%s: exit code %d, %s", test.args, code, stderr)
	}
}

func TestAnswerRows(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/a.jsonl", schoolAnswers)
	f.must(t, "", "eval", "--task", "gsm8k", "--completions", "TMP/a.jsonl", "--answer-match", "math", "--output", "TMP/results.json", "--output-rows", "TMP/rows/rows.jsonl")
	text := must.Get(os.ReadFile(f.expand("TMP/rows/rows.jsonl")))(t)
	var rows []answerRow
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var row answerRow
		must.Do(t, json.Unmarshal([]byte(line), &row))
		rows = append(rows, row)
	}
	want := []answerRow{
		{1, true, "3", "3", "phrase", "3", "3", "numbers"},
		{2, true, "3", "3 bolts", "phrase", "3", "3 [bolt]", "numbers, a unit on one side"},
		{3, true, "3", "3.0", "phrase", "3", "3.0", "numbers"},
		{4, false, "3", "4", "phrase", "3", "4", "numbers"},
		{5, false, "3", "", "none", "", "", "no answer"},
	}
	expect.Equal(t, want, rows, "rows")
}

// TestRescore rescores the completions of a run: the same rewards reproduce its scores, other rewards change them.
func TestRescore(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	options := append(drop(exercise(), "--tiny-layers", "--tiny-hidden", "--num-steps", "--samples-per-prompt"),
		"--num-steps", "2", "--samples-per-prompt", "3", "--logging-steps", "1", "--keep-completions", "-1", "--reward", "accuracy=2,expr:'length'")
	file := f.expand("TMP/out/sum_digits_rl/logs/completions.jsonl")
	for _, algorithm := range []string{"grpo", "ppo"} {
		f.must(t, "", with(options, "--algorithm", algorithm)...)
		records, err := readRecords(file)
		expect.Require(t, err == nil && len(records) == 12, "%d answers, %v", len(records), err)
		first := records[0]
		if len(first.Each) != 2 || first.Reward != 2*first.Each[0].Value+first.Each[1].Value || first.Shown == "" || len(first.Tokens) == 0 || first.Tier == "" || records[11].Step != 2 {
			t.Errorf("the first answer: %+v", first)
		}
		expect.True(t, slices.ContainsFunc(records, func(r rl.Record) bool { return r.Advantage != 0 }) && (algorithm == "ppo") == (first.Value != nil),
			"advantages %v and %v, values %v", first.Advantage, records[1].Advantage, first.Value)
		out := f.must(t, "", "rescore", file, "--output", "TMP/again.jsonl")
		expect.True(t, strings.HasSuffix(out, "12 completions: 12 rewards and 12 of 12 advantages are unchanged\n"), "%s:\n%s", algorithm, out)
		again, err := readRecords(f.expand("TMP/again.jsonl"))
		expect.True(t, err == nil && len(again) == 12 && same(again[5].Advantage, records[5].Advantage), "%d rescored answers, %v", len(again), err)
	}
	out := f.must(t, "", "rescore", file, "--reward", "expr:'-length-1'")
	expect.True(t, strings.Contains(out, "12 completions: 0 rewards and"), "other rewards:\n%s", out)
	// It detects a changed reward and a file of another kind.
	f.edit(t, file, `"reward":`, `"reward":1`)
	out = f.must(t, "", "rescore", file)
	expect.True(t, strings.Contains(out, " 11 rewards and"), "a changed reward:\n%s", out)
	f.write(t, "TMP/other.jsonl", `{"question": "x"}`+"\n")
	for args, want := range map[string]string{
		"rescore TMP/other.jsonl":                      "other.jsonl:1: no step or prompt",
		"rescore TMP/none.jsonl":                       "none.jsonl: no such file",
		"rescore " + file + " --reward accurate":       `--reward: unknown reward "accurate"`,
		"rescore TMP/start/config.json":                "config.json:1: ",
		"rescore " + file + " --config TMP/nowhere.ym": "nowhere.ym",
	} {
		f.refused(t, want, strings.Fields(args)...)
	}
}

// TestRescoreLabels does the same with a classifier's choices.
func TestRescoreLabels(t *testing.T) {
	f := newFolders(t, "mean")
	var rows strings.Builder
	rows.WriteString("text,label\n")
	for i := range 60 {
		rows.WriteString(strings.Repeat("the ", i) + []string{"cat,animals\n", "law,law\n", "force,physics\n"}[i%3])
	}
	f.write(t, "TMP/rows.csv", rows.String())
	f.must(t, "", strings.Fields("train --dataset TMP/rows.csv --mode rl_only --pretrained-model MODEL --rl-episodes 2 --buffer-size 8 --rl-batch-size 4 --logging-steps 1 --keep-completions -1 --output-dir TMP/out")...)
	file := f.expand("TMP/out/intent_classifier_rl/logs/completions.jsonl")
	out := f.must(t, "", "rescore", file)
	expect.True(t, strings.Contains(out, "16 completions: 16 rewards and 16 of 16 advantages are unchanged\n"), "rescore:\n%s", out)
	out = f.must(t, "", "rescore", file, "--reward", "expr:'correct+2'")
	expect.True(t, strings.Contains(out, "16 completions: 0 rewards and"), "other rewards:\n%s", out)
}
