package app

import (
	"encoding/json"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
