package app

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// schoolAnswers are right by each rule, by units, by numeric only, wrong, and without an answer.
const schoolAnswers = `{"question": "2+1?", "answer": "2+1=3\n#### 3", "completion": "It is 3.\nThe answer is: 3"}
{"question": "2+1?", "answer": "2+1=3\n#### 3", "completion": "The answer is: 3 bolts."}
{"question": "2+1?", "answer": "2+1=3\n#### 3", "completion": "The answer is: 3.0"}
{"question": "2+1?", "answer": "2+1=3\n#### 3", "completion": "The answer is: 4"}
{"question": "2+1?", "answer": "2+1=3\n#### 3", "completion": "I do not know"}
`

func TestEvalAnswers(t *testing.T) {
	for _, test := range []struct {
		name, task, file, text string
		args                   string
		match                  answer.Match
		correct                map[answer.Match]int
		tiers                  map[string]float64
		format                 float64
	}{
		{
			name: "school", task: "gsm8k", file: "a.jsonl", text: schoolAnswers, match: answer.Exact,
			correct: map[answer.Match]int{answer.Exact: 1, answer.Numeric: 2, answer.Units: 3, answer.Math: 3},
			tiers:   map[string]float64{"phrase": 0.8, "none": 0.2}, format: 0.8,
		},
		{
			name: "units", task: "gsm8k", file: "a.jsonl", text: schoolAnswers, args: "--answer-match units", match: answer.Units,
			correct: map[answer.Match]int{answer.Exact: 1, answer.Numeric: 2, answer.Units: 3, answer.Math: 3},
			tiers:   map[string]float64{"phrase": 0.8, "none": 0.2}, format: 0.8,
		},
		{
			name: "competition", task: "math", file: "a.json", args: "--completion-field out", match: answer.Math,
			text: `[{"problem": "p", "solution": "\\boxed{\\frac{1}{2}}", "out": "so \\boxed{0.5}", "other": 1},
				{"problem": "p", "solution": "\\boxed{7}", "out": "so \\boxed{7}"}]`,
			correct: map[answer.Match]int{answer.Exact: 1, answer.Numeric: 2, answer.Units: 2, answer.Math: 2},
			tiers:   map[string]float64{"boxed": 1}, format: 1,
		},
		{
			name: "digits", task: "sum_digits", file: "a.jsonl", match: answer.Numeric,
			text: `{"answer": 28, "completion": "+1=1 [ANSWER] 28"}
{"answer": "28", "completion": "[ANSWER] 28.0"}
{"answer": 28, "completion": "the answer is 28"}
{"answer": 28, "completion": "27, no, 28 or 29"}
`,
			correct: map[answer.Match]int{answer.Exact: 2, answer.Numeric: 3, answer.Units: 3, answer.Math: 3},
			tiers:   map[string]float64{"tag": 0.5, "phrase": 0.25, "last_number": 0.25}, format: 0.5,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := folders{tmp: t.TempDir()}
			f.write(t, "TMP/"+test.file, test.text)
			args := []string{"eval", "--task", test.task, "--completions", "TMP/" + test.file, "--output", "TMP/logs/results.json"}
			out := f.must(t, "", append(args, strings.Fields(test.args)...)...)
			results := must.JSON[answerResults](t, f.expand("TMP/logs/results.json"))
			got := map[answer.Match]int{}
			for match, scores := range results.Matches {
				got[match] = scores.Correct
			}
			expect.Equal(t, test.correct, got, "correct")
			expect.Equal(t, test.tiers, results.FoundBy, "tiers")
			expect.True(t, results.Match == test.match && results.FormatRate == test.format && results.Task == test.task,
				"match %s, format rate %v, task %s", results.Match, results.FormatRate, results.Task)
			expect.Equal(t, results.Matches[test.match], results.AnswerScores, fmt.Sprintf("scores are not those of %s", test.match))
			expect.Contains(t, out, "exact ", "numeric ", "units ", "math ", f.expand("Wrote TMP/logs/results.json"))
		})
	}
}

func TestEvalAnswersRefuses(t *testing.T) {
	f := folders{model: "models/x", tmp: t.TempDir()}
	f.write(t, "TMP/a.jsonl", schoolAnswers)
	f.write(t, "TMP/none.csv", "answer,completion\n")
	f.write(t, "TMP/d.jsonl", `{"answer": 1.5, "completion": "1"}`+"\n")
	f.write(t, "TMP/e.jsonl", `{"answer": 1, "completion": 1}`+"\n")
	f.write(t, "TMP/f.jsonl", `{"completion": "1"}`+"\n")
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"--task gsm8k", 2, "eval --task gsm8k needs --model DIR (a language model or an adapter) or --completions FILE"},
		{"--task chat", 2, "eval --task chat needs --model DIR and --dataset FILE"},
		{"--completions TMP/a.jsonl", 2, "--completions: choose a --task with answers: gsm8k, math, prompts, reverse_digits, sum_digits"},
		{"--task math --model MODEL --completions TMP/a.jsonl", 2, "--model: does not apply with --completions FILE"},
		{"--task math --threads 2 --completions TMP/a.jsonl", 2, "--threads: does not apply with --completions FILE"},
		{"--task math --text-column q --completions TMP/a.jsonl", 2, "--text-column: does not apply with --completions FILE"},
		{"--task gsm8k --answer-match fuzzy --completions TMP/a.jsonl", 2, `--answer-match: unknown answer match "fuzzy"; choose numeric, exact, units or math`},
		{"--task gsm8k --completion-field= --completions TMP/a.jsonl", 2, "--completion-field: the name is empty"},
		{"--model MODEL --answer-match exact", 2, "--answer-match: does not apply to task intent"},
		{"--model MODEL --completion-field x", 2, "--completion-field: needs --completions FILE"},
		{"--task gsm8k --completions TMP/no.jsonl", 1, "reading data set: open TMP/no.jsonl: no such file or directory"},
		{"--task gsm8k --completions TMP/a.jsonl --completion-field out", 1, `5 rows cannot be used; fix them, or drop them with --on-bad-row skip: TMP/a.jsonl:1 and 4 more: field "out" is missing or not text`},
		{"--task sum_digits --completions TMP/none.csv", 1, "TMP/none.csv: no rows"},
		{"--task sum_digits --completions TMP/d.jsonl", 1, `TMP/d.jsonl:1: field "answer": "1.5" is not an integer`},
		{"--task sum_digits --completions TMP/e.jsonl", 1, `TMP/e.jsonl:1: field "completion" is missing or not text`},
		{"--task sum_digits --completions TMP/f.jsonl", 1, `TMP/f.jsonl:1: field "answer": missing`},
	} {
		f.fails(t, test.code, test.want, strings.Fields("eval "+test.args)...)
	}
}

// TestEvalChat: the loss of rows is that which training measures on the same rows as its validation split.
func TestEvalChat(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.rows(t, "TMP/rows.jsonl", 12, func(i int) string {
		return fmt.Sprintf(`{"prompt": "%d+1=", "completion": "%d", "split": "%s"}`, i, i+1, []string{"train", "val"}[i%2])
	})
	f.must(t, "", strings.Fields("train --task chat --dataset TMP/rows.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --epochs 2 --keep last --threads 1 --output-dir TMP")...)
	out := f.must(t, "", strings.Fields("eval --task chat --threads 1 --model TMP/chat_supervised --dataset TMP/rows.jsonl --output TMP/e.json --output-rows TMP/texts.jsonl")...)
	expect.True(t, strings.Contains(out, "perplexity") && strings.Contains(out, "6 texts") && strings.Contains(out, "evaluate at least 30 texts"), "printed %s", out)
	v := must.Into[textResults](t, files.LoadJSON, f.expand("TMP/e.json"))
	logged := must.Read(t, f.expand("TMP/chat_supervised/logs/training_log.txt"))
	want := fmt.Sprintf("Epoch 2: validation loss=%.4f, perplexity=%.3f, token accuracy=%.4f", v.Loss.Value, v.Perplexity.Value, v.Accuracy.Value)
	expect.True(t, strings.Contains(logged, want), "the log lacks %q:\n%s", want, logged)
	expect.True(t, v.N == 6 && v.Loss.Interval[0] <= v.Loss.Value && v.Loss.Interval[1] >= v.Loss.Value, "%+v", v)
	loss, tokens := 0.0, 0
	for _, row := range lines[textRow](t, f.expand("TMP/texts.jsonl")) {
		expect.Require(t, strings.Contains(row.Text, "+1="), "%+v", row)
		loss, tokens = loss+row.Loss*float64(row.Tokens), tokens+row.Tokens
	}
	expect.True(t, tokens == v.Tokens && math.Abs(loss/float64(tokens)-v.Loss.Value) <= 1e-9, "the rows have %d tokens with loss %v, the whole %+v", tokens, loss/float64(tokens), v)
	f.usages(t, "", map[string]string{
		"eval --task chat --model TMP/chat_supervised":                                   "needs --model DIR and --dataset FILE",
		"eval --task chat --model TMP/chat_supervised --dataset TMP/rows.jsonl --beta 1": "--beta: does not apply to task chat",
		"eval --model TMP/chat_supervised --dataset TMP/rows.jsonl":                      "trained on task chat; pass --task chat",
	})
}

// TestEvalPrograms grades the programs in a file.
func TestEvalPrograms(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	problems := must.File(t, "p.jsonl", `{"task_id":"a","prompt":"Double.","tests":[{"call":"f(2)","expect":"4"},{"call":"f(0)","expect":"0"}]}`+"\n"+
		`{"task_id":"b","prompt":"Half.","tests":"assert f(2) == 1"}`)
	rows := must.File(t, "c.jsonl", `{"task_id":"a","completion":"def f(x): return 2*x"}`+"\n"+`{"task_id":"a","completion":"def f(x): return 4"}`+"\n"+`{"task_id":"b","completion":""}`)
	eval := []string{"eval", "--task", "code", "--output", "TMP/out.json"}
	code, printed, complaint := f.rltrain("", append(eval, "--language", "python", "--dataset", problems, "--completions", rows, "--output-rows", "TMP/rows.jsonl")...)
	if strings.Contains(complaint, "no interpreter") || strings.Contains(complaint, "no sandbox") {
		t.Skip(complaint)
	}
	expect.Require(t, code == 0 && strings.Contains(printed, "1 of 3 programs pass (2 of 2 problems)"), "exit code %d: %s%s", code, printed, complaint)
	got := must.JSON[programResults](t, f.expand("TMP/out.json"))
	want := map[string]int{"pass": 1, "wrong": 1, "empty": 1}
	diff := cmp.Diff(want, got.Classes)
	expect.True(t, diff == "" && got.N == 3 && got.Passed == 1 && got.Pass1 == .25 && got.TestRate == .5 && got.Excluded == 0 && len(got.PassAt) == 1, "%+v %s", got, diff)
	text := must.Read(t, f.expand("TMP/rows.jsonl"))
	expect.Same(t, 3, strings.Count(text, "\n"), "rows")
	expect.Contains(t, text, `"class":"wrong","passed":1,"total":2`, `"prompt":"Double.","completion":"def f(x): return 4"`)
	expect.True(t, strings.Contains(printed, "at least 30 problems"), "nothing is said of 2 problems: %s", printed)
	for want, args := range map[string][]string{
		`task_id "c" is not in the data set`:             {"--dataset", problems, "--completions", must.File(t, "x.jsonl", `{"task_id":"c","completion":""}`)},
		"the tests use g, np, which they do not define":  {"--dataset", must.File(t, "z.jsonl", `{"task_id":"a","prompt":"x","tests":"assert np.all(g(1))"}`), "--completions", must.File(t, "w.jsonl", `{"task_id":"a","completion":""}`)},
		`field "completion" is missing`:                  {"--dataset", problems, "--completions", must.File(t, "y.jsonl", `{"task_id":"a"}`)},
		"--dataset: is needed":                           {"--completions", rows},
		"--n: does not apply with --completions":         {"--dataset", problems, "--completions", rows, "--n", "3"},
		`--language: "cobol" is not one of python, node`: {"--dataset", problems, "--completions", rows, "--language", "cobol"},
	} {
		f.refused(t, want, append(eval, args...)...)
	}
}

// TestUngradedProgramsAreSkipped skips programs the sandbox failed on, and reports how many.
func TestUngradedProgramsAreSkipped(t *testing.T) {
	ran := func(problem string, right bool, class string) envs.Program {
		return envs.Program{Problem: problem, Info: &envs.Info{Correct: right, Tests: &envs.Tests{Class: class, Passed: map[bool]int{true: 2, false: 1}[right], Total: 2}}}
	}
	lost := func(problem string) envs.Program { return envs.Program{Problem: problem, Failure: "no process"} }
	tally := &programTally{programResults: programResults{Problems: 3, PassAt: map[string]float64{}}, attempts: map[string]rl.Attempts{}}
	for _, p := range []envs.Program{ran("a", true, "pass"), lost("a"), ran("b", false, "wrong"), ran("b", true, "pass"), lost("c"), lost("c")} {
		row := tally.add(p)
		expect.True(t, (row.Class == "sandbox-error") == (p.Info == nil) && row.Message == p.Failure, "%+v becomes %+v", p, row)
	}
	tally.score()
	got1 := rl.RateEstimate([]float64{1, .5}).Interval
	want := programResults{
		Problems: 3, Attempted: 2, N: 3, Passed: 2, Pass1: .75, PassAt: map[string]float64{"pass@1": .75}, TestRate: 1,
		Intervals: map[string]rl.Interval{"pass@1": got1},
		Classes:   map[string]int{"pass": 2, "wrong": 1}, Excluded: 3, Failure: "no process",
	}
	expect.Equal(t, want, tally.programResults)
	expect.Contains(t, tally.String(), "2 of 3 programs pass (2 of 3 problems)", "skipped 3 programs that the sandbox failed to run; first error: no process")
}

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
	f.fails(t, shared.ExitUsage, "answer needs 2 arguments, GOLD ANSWER, not 1", "answer", "1")
	f.fails(t, shared.ExitUsage, `--answer-match: unknown answer match "fuzzy"; choose numeric, exact, units or math`, "answer", "--answer-match", "fuzzy", "1", "2")
}

func TestAnswerRows(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/a.jsonl", schoolAnswers)
	f.must(t, "", "eval", "--task", "gsm8k", "--completions", "TMP/a.jsonl", "--answer-match", "math", "--output", "TMP/results.json", "--output-rows", "TMP/rows/rows.jsonl")
	want := []answerRow{
		{1, true, "3", "3", "phrase", "3", "3", "numbers"},
		{2, true, "3", "3 bolts", "phrase", "3", "3 [bolt]", "numbers, a unit on one side"},
		{3, true, "3", "3.0", "phrase", "3", "3.0", "numbers"},
		{4, false, "3", "4", "phrase", "3", "4", "numbers"},
		{5, false, "3", "", "none", "", "", "no answer"},
	}
	expect.Equal(t, want, lines[answerRow](t, f.expand("TMP/rows/rows.jsonl")), "rows")
}

// TestRescore rescores the completions of a run: the same rewards reproduce its scores, other rewards change them.
func TestRescore(t *testing.T) {
	f := started(t)
	options := append(drop(exercise(), "--num-steps", "--samples-per-prompt"),
		"--num-steps", "2", "--samples-per-prompt", "3", "--logging-steps", "1", "--keep-completions", "-1", "--reward", "accuracy=2,expr:'length'")
	file := f.expand("TMP/out/sum_digits_rl/logs/completions.jsonl")
	for _, algorithm := range []string{"grpo", "ppo"} {
		f.must(t, "", with(options, "--algorithm", algorithm)...)
		records, err := readRecords(file)
		expect.Require(t, err == nil && len(records) == 12, "%d answers, %v", len(records), err)
		first := records[0]
		expect.True(t, len(first.Each) == 2 && first.Reward == 2*first.Each[0].Value+first.Each[1].Value && first.Shown != "" && len(first.Tokens) != 0 && first.Tier != "" && records[11].Step == 2, "the first answer: %+v", first)
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
	f.refusals(t, "", map[string]string{
		"rescore TMP/other.jsonl":                      "other.jsonl:1: no step or prompt",
		"rescore TMP/none.jsonl":                       "none.jsonl: no such file",
		"rescore " + file + " --reward accurate":       `--reward: unknown reward "accurate"`,
		"rescore TMP/start/config.json":                "config.json:1: ",
		"rescore " + file + " --config TMP/nowhere.ym": "nowhere.ym",
	})
}

// TestRescoreLabels does the same with a classifier's choices.
func TestRescoreLabels(t *testing.T) {
	f := newFolders(t, "mean")
	f.labelled(t, "TMP/rows.csv")
	f.must(t, "", strings.Fields("train --dataset TMP/rows.csv --mode rl_only --pretrained-model MODEL --rl-episodes 2 --buffer-size 8 --rl-batch-size 4 --logging-steps 1 --keep-completions -1 --output-dir TMP/out")...)
	file := f.expand("TMP/out/intent_classifier_rl/logs/completions.jsonl")
	out := f.must(t, "", "rescore", file)
	expect.True(t, strings.Contains(out, "16 completions: 16 rewards and 16 of 16 advantages are unchanged\n"), "rescore:\n%s", out)
	out = f.must(t, "", "rescore", file, "--reward", "expr:'correct+2'")
	expect.True(t, strings.Contains(out, "16 completions: 0 rewards and"), "other rewards:\n%s", out)
}
