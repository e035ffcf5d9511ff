package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/digits"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
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
		{
			name: "digits in columns", task: "reverse_digits", file: "a.csv", match: answer.Numeric, text: "answer,completion\n4321,[ANSWER] 4321\n12,[ANSWER] 21\n",
			correct: map[answer.Match]int{answer.Exact: 1, answer.Numeric: 1, answer.Units: 1, answer.Math: 1},
			tiers:   map[string]float64{"tag": 1}, format: 1,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := folders{tmp: t.TempDir()}
			f.write(t, "TMP/"+test.file, test.text)
			args := []string{"eval", "--task", test.task, "--completions", "TMP/" + test.file, "--output", "TMP/logs/results.json"}
			out := f.must(t, "", append(args, strings.Fields(test.args)...)...)
			var results answerResults
			readResults(t, f.expand("TMP/logs/results.json"), &results)
			got := map[answer.Match]int{}
			for match, scores := range results.Matches {
				got[match] = scores.Correct
			}
			expect.Equal(t, test.correct, got, "correct")
			expect.Equal(t, test.tiers, results.FoundBy, "tiers")
			expect.True(t, results.Match == test.match && results.FormatRate == test.format && results.Task == test.task,
				"match %s, format rate %v, task %s", results.Match, results.FormatRate, results.Task)
			expect.Equal(t, results.Matches[test.match], results.AnswerScores, fmt.Sprintf("scores are not those of %s", test.match))
			for _, want := range []string{"exact ", "numeric ", "units ", "math ", f.expand("Wrote TMP/logs/results.json")} {
				expect.True(t, strings.Contains(out, want), "no %q in\n%s", want, out)
			}
		})
	}
}

// Answers to digits problems in a file are verified as in training.
func TestDigitAnswersAreJudgedAsInTraining(t *testing.T) {
	task := must.Get(digits.New(digits.Sum, 1, digits.Defaults(digits.Sum)))(t)
	episode := must.Get(task.Episode(envs.Train, 0))(t)
	must.Get(episode.Reset(t.Context()))(t)
	text := episode.(*digits.Episode).Solution()
	step := must.Get(episode.Step(t.Context(), envs.Action{Text: text}))(t)
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/a.csv", "answer,completion\n"+step.Info.Truth+",\""+text+"\"\n")
	d := must.Get(envs.Find(digits.Sum))(t)
	judges, _, err := d.Options().(envs.AnswerSource).Answers(f.expand("TMP/a.csv"), "completion")
	must.Do(t, err)
	step.Info.Kind = "" // not stored in a file of answers
	expect.Equal(t, step.Info, judges[0](answer.Numeric))
}

func TestEvalAnswersRefuses(t *testing.T) {
	f := folders{model: "models/x", tmp: t.TempDir()}
	f.write(t, "TMP/a.jsonl", schoolAnswers)
	f.write(t, "TMP/none.jsonl", "")
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
		{"--task talk", 2, `--task: "talk" is none of intent, a_letter, chat, code, gsm8k, math, preference, prompts, reverse_digits, sum_digits, text`},
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
		{"--task gsm8k --completions TMP/none.jsonl", 1, "TMP/none.jsonl: the file is empty; want one JSON object per line"},
		{"--task sum_digits --completions TMP/none.csv", 1, "TMP/none.csv: no rows"},
		{"--task sum_digits --completions TMP/d.jsonl", 1, `TMP/d.jsonl:1: field "answer": "1.5" is not an integer`},
		{"--task sum_digits --completions TMP/e.jsonl", 1, `TMP/e.jsonl:1: field "completion" is missing or not text`},
		{"--task sum_digits --completions TMP/f.jsonl", 1, `TMP/f.jsonl:1: field "answer": missing`},
	} {
		code, stdout, stderr := f.rltrain("", append([]string{"eval"}, strings.Fields(test.args)...)...)
		if want := "rltrain: " + f.expand(test.want) + "\n"; code != test.code || stderr != want || stdout != "" {
			t.Errorf("%s: exit code %d, printed %q\n got %swant %s", test.args, code, stdout, stderr, want)
		}
	}
}
