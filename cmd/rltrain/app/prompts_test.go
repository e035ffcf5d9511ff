package app

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/transformers"
)

// questions writes n made-up questions without answers.
func (f folders) questions(t *testing.T, name string, n int) {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"prompt": "%d: say something! ", "sort": "%d"}`+"\n", i, i%2)
	}
	f.write(t, name, b.String())
}

// promptRun are the options of a one-second run.
func promptRun(more ...string) []string {
	return append(strings.Fields(`train --task prompts --dataset TMP/q.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 2
		--eval-samples 8 --eval-every 25 --fresh-samples 0 --num-steps 25 --prompts-per-step 4 --samples-per-prompt 16 --rl-learning-rate 0.02
		--output-dir TMP`), more...)
}

const shellJudge = `echo begun >> "$1"
n=0
while IFS= read -r line; do
id=${line#*:}; id=${id%%,*}
text=${line#*\"text\":\"}; text=${text%%\",\"written*}
case $text in *[aeiou]*) reward=1 ;; *) reward=0 ;; esac
echo "{\"id\":$id,\"reward\":$reward}"
n=$((n + 1))
[ $n = 500 ] && kill -9 $$
done
`

const pythonJudge = `
import json, os, sys
open(sys.argv[1], "a").write("begun\n")
for n, line in enumerate(sys.stdin, 1):
    q = json.loads(line)
    print(json.dumps({"id": q["id"], "reward": sum(c in "aeiou" for c in q["text"]) / 2}), flush=True)
    if n == 500:
        os.kill(os.getpid(), 9)
`

// TestPromptsLearn trains on questions without answers, with a custom reward.
func TestPromptsLearn(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.questions(t, "TMP/q.jsonl", 200)
	f.write(t, "TMP/judge.sh", shellJudge)
	f.write(t, "TMP/judge.py", pythonJudge)
	for name, spec := range map[string]string{
		"expression": `expr:'text matches "[aeiou]" ? 1 : 0'`,
		"sh":         f.expand("cmd:'sh TMP/judge.sh TMP/begun-sh'"),
		"python3":    f.expand("cmd:'python3 TMP/judge.py TMP/begun-python3'"),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil && name == "python3" {
				t.Skip("needs python3")
			}
			dir := f.expand("TMP/" + name)
			f.must(t, "", with(promptRun("--reward", spec), "--output-dir", dir)...)
			var scores struct{ Before, After, Last *rl.AnswerScores }
			must.Do(t, files.LoadJSON(filepath.Join(dir, "prompts_rl", "logs", "eval_results.json"), &scores))
			expect.True(t, scores.Before.Reward != nil && scores.After.Reward != nil && *scores.After.Reward >= 0.9 && *scores.Before.Reward <= 0.5,
				"mean reward before and after: %+v, %+v; want at most 0.5, and at least 0.9", scores.Before, scores.After)
			for _, row := range must.Get(report.ReadMetrics(filepath.Join(dir, "prompts_rl", "logs", "metrics.jsonl")))(t) {
				failed, _ := row["failed_rewards"].(float64)
				expect.True(t, failed <= 0, "%v rewards failed in step %v", failed, row["step"])
			}
			if begun, err := os.ReadFile(f.expand("TMP/begun-" + name)); name != "expression" && (err != nil || strings.Count(string(begun), "begun") < 3) {
				t.Errorf("the program began %q, %v; it is killed after each 500 questions", begun, err)
			}
		})
	}
}

// TestPromptsKeepBestReward selects the best policy by the named rewards, whatever the reference answers.
func TestPromptsKeepBestReward(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/q.jsonl", letters(200))
	f.must(t, "", promptRun("--reward", `expr:'text matches "[aeiou]" ? 1 : 0'`)...)
	var scores struct{ Before, After, Last *rl.AnswerScores }
	must.Do(t, files.LoadJSON(f.expand("TMP/prompts_rl/logs/eval_results.json"), &scores))
	expect.True(t, scores.After.Reward != nil && *scores.After.Reward >= 0.9 && scores.After.Accuracy == 0 && scores.After.Verified(), "%+v", scores.After)
}

// letters returns n questions whose answer is zz.
func letters(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"prompt": "%d: say something! ", "answer": "zz"}`+"\n", i)
	}
	return b.String()
}

// TestPromptsOfSeveralTurns trains on demonstrations, then on dialogues with a program.
func TestPromptsOfSeveralTurns(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, `{"prompt": "%d? ", "answer": "a", "completion": "b."}`+"\n", i)
	}
	f.write(t, "TMP/q.jsonl", b.String())
	f.write(t, "TMP/other.sh", `while IFS= read -r line; do
echo "$line" >> "$1"
id=${line#*:}; id=${id%%,*}
case $line in *'"turn":3,'*) echo "{\"id\":$id,\"done\":true}" ;; *) echo "{\"id\":$id,\"text\":\"More!\"}" ;; esac
done
`)
	f.must(t, "", with(promptRun("--turns-cmd", f.expand("sh TMP/other.sh TMP/asked"), "--max-turns", "5"),
		"--mode", "supervised_then_rl", "--stop", `.,\n`, "--max-steps", "80", "--learning-rate", "0.01", "--batch-size", "8", "--num-steps", "1", "--eval-every", "1", "--verbose", "")...)
	asked := must.Get(os.ReadFile(f.expand("TMP/asked")))(t)
	for _, want := range []string{
		`"turn":1,"text":"b","messages":[{"role":"user","content":"`, `{"role":"assistant","content":"b"},{"role":"user","content":"More!"}`,
		`"turn":3,`, `"row":{"prompt":"`, `"answer":"a"`,
	} {
		expect.True(t, strings.Contains(string(asked), want), "the program was never asked %s", want)
	}
	expect.True(t, !strings.Contains(string(asked), `"turn":4,`), "the program was asked again after it was done")
	log, err := os.ReadFile(f.expand("TMP/prompts_rl/logs/training_log.txt"))
	expect.True(t, err == nil && strings.Contains(string(log), `b.\nMore!\nb.`), "no turns in the log, %v:\n%s", err, log)
}

func TestPromptsRefuse(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.questions(t, "TMP/q.jsonl", 20)
	f.write(t, "TMP/empty.jsonl", `{"prompt": "a", "answer": 1}`+"\n"+`{"prompt": " ", "answer": 1}`+"\n")
	f.write(t, "TMP/null.jsonl", `{"prompt": "a", "answer": 1}`+"\n"+`{"prompt": "b", "answer": null}`+"\n")
	f.write(t, "TMP/none.jsonl", `{"question": "a"}`+"\n")
	f.write(t, "TMP/said.jsonl", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`+"\n")
	var messages strings.Builder
	for i := range 10 {
		fmt.Fprintf(&messages, `{"messages": [{"role": "user", "content": "a%d"}], "answer": "b"}`+"\n", i)
	}
	f.write(t, "TMP/messages.jsonl", messages.String())
	for wrong, want := range map[string]string{
		"":                                          `--reward: is needed, as expr:'...' or cmd:PROGRAM: TMP/q.jsonl has no column "answer"`,
		"--reward answer":                           "rewards failed for all 8 samples: reward answer: the row has no answer",
		"--answer-column truth":                     `--answer-column: TMP/q.jsonl has no column "truth"; its columns are "prompt", "sort"`,
		"--kind-column level":                       `--kind-column: TMP/q.jsonl has no column "level"`,
		"--kind-column prompt":                      `--kind-column: "prompt" cannot be this column`,
		"--dataset TMP/empty.jsonl":                 `TMP/empty.jsonl:2: column "prompt" is empty`,
		"--dataset TMP/null.jsonl":                  `TMP/null.jsonl:2: column "answer" is null`,
		"--dataset TMP/none.jsonl":                  `TMP/none.jsonl:1: no column prompt or messages; its columns are "question"`,
		"--dataset TMP/said.jsonl":                  "TMP/said.jsonl:1: column \"messages\": the last message is the assistant's",
		"--dataset TMP/messages.jsonl":              "TMP/messages.jsonl:1: messages need a chat template",
		`--reward expr:1 --stop a,`:                 `--stop: "a,": an empty stop string`,
		`--reward expr:1 --stop \d`:                 `--stop: "\\d": unknown escape \d`,
		"--reward expr:1 --turns-cmd ./no":          "--turns-cmd: ",
		"--reward expr:1 --max-turns 3":             "--max-turns: applies only with --turns-cmd PROGRAM",
		"--mode supervised_then_rl --reward expr:1": "--mode: supervised_then_rl trains on demonstrations, and TMP/q.jsonl has none; choose rl_only",
	} {
		code, _, stderr := f.rltrain("", with(promptRun(), strings.Fields(wrong)...)...)
		expect.True(t, code != 0 && strings.Contains(stderr, f.expand(want)) && strings.Count(stderr, "rltrain: ") == 1, "%s: exit %d, %q; want %q", wrong, code, stderr, f.expand(want))
	}
}

// examined200 returns a model trained to say a, and questions for it.
func examined200(t *testing.T) folders {
	t.Helper()
	f := folders{tmp: t.TempDir()}
	f.questions(t, "TMP/q.jsonl", 200)
	f.must(t, "", with(promptRun("--reward", `expr:'text matches "^a" ? 1 : 0'`), "--num-steps", "12")...)
	must.Do(t, policy.TinyModel(f.expand("TMP/new"), 1, 32, 7))
	var b, letters strings.Builder
	for i := range 30 {
		fmt.Fprintf(&b, `{"prompt": "%d: say something! ", "answer": "%s", "sort": "%d"}`+"\n", i, []string{"aa", "zz"}[i%2], i%2)
		fmt.Fprintf(&letters, `{"prompt": "%d!", "answer": "a"}`+"\n", i)
	}
	f.write(t, "TMP/aa.jsonl", b.String())
	f.write(t, "TMP/a.jsonl", letters.String())
	return f
}

// TestEvalOfALanguageModel samples several completions per problem, and compares two models.
func TestEvalOfALanguageModel(t *testing.T) {
	f := examined200(t)
	before := must.Get(os.ReadFile(f.expand("TMP/prompts_rl/logs/eval_results.json")))(t)
	args := strings.Fields("--task prompts --dataset TMP/aa.jsonl,TMP/a.jsonl --n 4 --max-new-tokens 2 --output TMP/out/results.json --output-rows TMP/out/rows.jsonl")
	out := f.must(t, "", append([]string{"eval", "--model", "TMP/prompts_rl"}, args...)...)
	var results problemResults
	must.JSON(t, f.expand("TMP/out/results.json"), &results)
	expect.Require(t, len(results.Sets) == 2 && results.Sets[0].Problems == 30 && results.Sets[0].N == 4 && len(results.Sets[0].Rows) == 30, "%+v", results)
	// The figures must match the samples in the file.
	for _, set := range results.Sets {
		for k := 1; k <= 4; k++ {
			sum := 0.0
			for _, row := range set.Rows {
				right := 0
				for _, try := range row.Samples {
					if try.Correct {
						right++
					}
				}
				expect.True(t, right == row.Correct && len(row.Samples) == 4, "row %+v", row)
				sum += rl.PassAt(4, right, k)
			}
			got, want := set.Pass[k-1].Value, sum/30
			expect.True(t, got-want <= 1e-9 && want-got <= 1e-9, "pass@%d is %v, want %v", k, got, want)
		}
	}
	text, err := os.ReadFile(f.expand("TMP/out/rows.jsonl"))
	expect.True(t, err == nil && strings.Count(string(text), "\n") == 240, "%d rows, %v", strings.Count(string(text), "\n"), err)
	for line := range strings.Lines(string(text)) {
		var row sampleRow
		err := json.Unmarshal([]byte(line), &row)
		expect.Require(t, err == nil && row.Prompt != "" && row.Truth != "" && row.Correct == (row.Why == "") && row.Row >= 1 && row.Sample >= 1 && row.Sample <= 4, "%s: %v", line, err)
	}
	expect.True(t, results.Sets[0].Mean.Value != 0 && results.Sets[0].Rows[0].Truth == "aa", "%+v", results.Sets[0].PassScores)
	expect.Contains(t, out, "pass@1", "pass@4", "majority@4", f.expand("TMP/a.jsonl: task=prompts problems=30 samples_per_problem=4 temperature=1"))
	after, _ := os.ReadFile(f.expand("TMP/prompts_rl/logs/eval_results.json"))
	expect.True(t, string(after) == string(before), "the training run's results have changed")

	out = f.must(t, "", append([]string{"compare", "TMP/new", "TMP/prompts_rl", "--kind-column", "sort"}, strings.Fields("--task prompts --dataset TMP/aa.jsonl --n 4 --max-new-tokens 2 --output TMP/compared.json")...)...)
	var compared problemComparison
	must.JSON(t, f.expand("TMP/compared.json"), &compared)
	c := compared.Comparisons[0]
	expect.True(t, c.Problems == 30 && c.Mean.Difference > 0 && c.Mean.Interval[0] > 0 && len(c.Kinds) == 2 && c.Kinds[1].Mean.Difference == 0, "%+v", c)
	expect.Contains(t, out, "B - A", "pass@1 of 0", "majority@4")
	greedy := f.must(t, "", strings.Fields("eval --task sum_digits --model TMP/prompts_rl --eval-samples 6 --max-new-tokens 4 --digits-max 99")...)
	if !strings.Contains(greedy, "evaluate at least 30 problems") || !strings.Contains(greedy, "sum_digits: task=sum_digits problems=6 samples_per_problem=1 temperature=0") || !strings.Contains(greedy, "kind") {
		t.Errorf("printed\n%s", greedy)
	}
	for wrong, want := range map[string]string{
		"--model TMP/new --task prompts":                                                   "task prompts needs --dataset FILE",
		"--model TMP/new --task prompts --dataset TMP/q.jsonl":                             `the data has no answers to compare with: TMP/q.jsonl has no column "answer"`,
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --n 0":                      "--n: 0 is out of range",
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --n 2 --temperature 0":      "--temperature 0: all 2 samples of a problem would be equal",
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --text-column a":            "--text-column: does not apply to task prompts",
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --digits-max 20":            "--digits-max: does not apply to task prompts",
		"--model TMP/new --task sum_digits --dataset TMP/aa.jsonl":                         "--dataset: does not apply to task sum_digits",
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --max-new-tokens 9999":      "no problem of 30 leaves room for 9999 new tokens",
		"--model TMP/new --task sum_digits --output TMP/prompts_rl/logs/eval_results.json": "holds the evaluation of the training run TMP/prompts_rl; choose another file",
		"--task sum_digits":     "eval --task sum_digits needs --model DIR (a language model or an adapter) or --completions FILE",
		"--model TMP/new --n 3": "--n: does not apply to task intent",
	} {
		f.refused(t, want, append([]string{"eval"}, strings.Fields(wrong)...)...)
	}
	f.usage(t, "name two folders of models or adapters", strings.Fields("compare TMP/new TMP/prompts_rl --task sum_digits --adapter TMP/x")...)
}

// TestTurnsOfAConversation puts the chat template's markers between turns and reports prompts that are too long.
func TestTurnsOfAConversation(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyChatModel(f.expand("TMP/chat"), 1, 32, 7))
	row := `{"messages": [{"role": "user", "content": "%s"}], "answer": "a"}` + "\n"
	f.write(t, "TMP/q.jsonl", fmt.Sprintf(row, "hi")+fmt.Sprintf(row, strings.Repeat("long ", 1000))+fmt.Sprintf(row, "hello"))
	f.write(t, "TMP/other.sh", `while IFS= read -r line; do id=${line#*:}; echo "{\"id\":${id%%,*},\"text\":\"More!\"}"; done`)
	out := f.must(t, "", "eval", "--task", "prompts", "--model", "TMP/chat", "--dataset", "TMP/q.jsonl", "--turns-cmd", "sh TMP/other.sh",
		"--max-turns", "2", "--stop", strings.Join(strings.Split("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", ""), ","),
		"--max-new-tokens", "64", "--n", "4", "--output", "TMP/r.json")
	want := "warning: skipped 1 problems that leave no room for 64 new tokens"
	expect.True(t, strings.Contains(out, want), "no %q in\n%s", want, out)
	var results problemResults
	must.JSON(t, f.expand("TMP/r.json"), &results)
	set := results.Sets[0]
	expect.Require(t, set.TooLong == 1 && set.Problems == 2 && set.Rows[1].Index == 2 && set.Failed == 0, "%+v", set.PassScores)
	turns := 0
	for _, row := range results.Sets[0].Rows {
		for _, try := range row.Samples {
			turns += strings.Count(try.Text, "\nuser: More!\nassistant: ")
		}
	}
	expect.True(t, turns != 0, "no sample has a second turn: %+v", results.Sets[0].Rows)
}

// TestPromptsRewardedByAModel uses the probability of a classifier's label as the reward of a completion.
func TestPromptsRewardedByAModel(t *testing.T) {
	f := newFolders(t, transformers.PoolFamily)
	f.questions(t, "TMP/q.jsonl", 20)
	spec := "model:" + f.model + "#" + labels[0] + "=2"
	f.must(t, "", with(promptRun("--reward", spec), "--num-steps", "2", "--logging-steps", "1")...)
	rows := must.Get(report.ReadMetrics(f.expand("TMP/prompts_rl/logs/metrics.jsonl")))(t)
	name := "rewards/" + strings.TrimSuffix(spec, "=2") + "/mean"
	found := 0
	for _, row := range rows {
		if mean, ok := row[name].(float64); ok {
			found++
			expect.True(t, mean > 0 && mean < 1 && row["failed_rewards"] == 0.0, "mean probability %v, %v failed", mean, row["failed_rewards"])
		}
	}
	expect.True(t, found != 0, "no %s in %v", name, rows)
	code, _, stderr := f.rltrain("", with(promptRun("--reward", "model:TMP/none"), "--output-dir", "TMP/no")...)
	expect.True(t, code != 0 && (strings.Contains(stderr, "TMP/none") || strings.Contains(stderr, "/none")), "a model that is not there: exit code %d, %s", code, stderr)
}
