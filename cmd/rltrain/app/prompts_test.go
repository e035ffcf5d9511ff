package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

// questions writes n made-up questions without answers.
func (f folders) questions(t *testing.T, name string, n int) {
	t.Helper()
	f.rows(t, name, n, func(i int) string {
		return fmt.Sprintf(`{"prompt": "%d: say something! ", "sort": "%d"}`, i, i%2)
	})
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

// TestPromptsLearn trains with a program that rewards and is killed after each 500 questions. The best policy is that of the named
// rewards, whatever the reference answers.
func TestPromptsLearn(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.rows(t, "TMP/q.jsonl", 200, func(i int) string { return fmt.Sprintf(`{"prompt": "%d: say something! ", "answer": "zz"}`, i) })
	f.write(t, "TMP/judge.sh", shellJudge)
	f.must(t, "", promptRun("--reward", f.expand("cmd:'sh TMP/judge.sh TMP/begun'"))...)
	scores := must.Into[struct{ Before, After, Last *rl.AnswerScores }](t, files.LoadJSON, f.expand("TMP/prompts_rl/logs/eval_results.json"))
	expect.True(t,
		scores.Before.Reward != nil && scores.After.Reward != nil && *scores.After.Reward >= 0.9 && *scores.Before.Reward <= 0.5,
		"mean reward before and after: %+v, %+v; want at most 0.5, and at least 0.9", scores.Before, scores.After)
	expect.True(t, scores.After.Accuracy == 0 && scores.After.Verified(), "%+v", scores.After)
	for _, row := range must.Get(report.ReadMetrics(f.expand("TMP/prompts_rl/logs/metrics.jsonl")))(t) {
		failed, _ := row["failed_rewards"].(float64)
		expect.True(t, failed <= 0, "%v rewards failed in step %v", failed, row["step"])
	}
	begun := must.Read(t, f.expand("TMP/begun"))
	expect.True(t, strings.Count(begun, "begun") >= 3, "the program began %q", begun)
}

// TestPromptsOfSeveralTurns trains on demonstrations, then on dialogues with a program.
func TestPromptsOfSeveralTurns(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.rows(t, "TMP/q.jsonl", 40, func(i int) string {
		return fmt.Sprintf(`{"prompt": "%d? ", "answer": "a", "completion": "b."}`, i)
	})
	f.write(t, "TMP/other.sh", `while IFS= read -r line; do
echo "$line" >> "$1"
id=${line#*:}; id=${id%%,*}
case $line in *'"turn":3,'*) echo "{\"id\":$id,\"done\":true}" ;; *) echo "{\"id\":$id,\"text\":\"More!\"}" ;; esac
done
`)
	f.must(t, "", with(promptRun("--turns-cmd", f.expand("sh TMP/other.sh TMP/asked"), "--max-turns", "5"),
		"--mode", "supervised_then_rl", "--stop", `.,\n`, "--max-steps", "80", "--learning-rate", "0.01", "--batch-size", "8", "--num-steps", "1", "--eval-every", "1", "--verbose", "")...)
	asked := must.Read(t, f.expand("TMP/asked"))
	expect.Contains(t, asked,
		`"turn":1,"text":"b","messages":[{"role":"user","content":"`, `{"role":"assistant","content":"b"},{"role":"user","content":"More!"}`,
		`"turn":3,`, `"row":{"prompt":"`, `"answer":"a"`)
	expect.True(t, !strings.Contains(asked, `"turn":4,`), "the program was asked again after it was done")
	expect.Contains(t, must.Read(t, f.expand("TMP/prompts_rl/logs/training_log.txt")), `b.\nMore!\nb.`)
}

func TestPromptsRefuse(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.questions(t, "TMP/q.jsonl", 20)
	f.write(t, "TMP/empty.jsonl", `{"prompt": "a", "answer": 1}`+"\n"+`{"prompt": " ", "answer": 1}`+"\n")
	f.write(t, "TMP/null.jsonl", `{"prompt": "a", "answer": 1}`+"\n"+`{"prompt": "b", "answer": null}`+"\n")
	f.write(t, "TMP/none.jsonl", `{"question": "a"}`+"\n")
	f.write(t, "TMP/said.jsonl", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`+"\n")
	f.rows(t, "TMP/messages.jsonl", 10, func(i int) string {
		return fmt.Sprintf(`{"messages": [{"role": "user", "content": "a%d"}], "answer": "b"}`, i)
	})
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
		f.refused(t, want, with(promptRun(), strings.Fields(wrong)...)...)
	}
}

// examined200 returns a model trained to say a, and questions for it.
func examined200(t *testing.T) folders {
	t.Helper()
	f := folders{tmp: t.TempDir()}
	f.questions(t, "TMP/q.jsonl", 200)
	f.must(t, "", with(promptRun("--reward", `expr:'text matches "^a" ? 1 : 0'`), "--num-steps", "12")...)
	must.Do(t, policy.TinyModel(f.expand("TMP/new"), 1, 32, 7))
	f.rows(t, "TMP/aa.jsonl", 30, func(i int) string {
		return fmt.Sprintf(`{"prompt": "%d: say something! ", "answer": "%s", "sort": "%d"}`, i, []string{"aa", "zz"}[i%2], i%2)
	})
	f.rows(t, "TMP/a.jsonl", 30, func(i int) string { return fmt.Sprintf(`{"prompt": "%d!", "answer": "a"}`, i) })
	return f
}

// TestEvalOfALanguageModel samples several completions per problem, and compares two models.
func TestEvalOfALanguageModel(t *testing.T) {
	f := examined200(t)
	before := must.Read(t, f.expand("TMP/prompts_rl/logs/eval_results.json"))
	args := strings.Fields("--task prompts --dataset TMP/aa.jsonl,TMP/a.jsonl --n 4 --max-new-tokens 2 --output TMP/out/results.json --output-rows TMP/out/rows.jsonl")
	out := f.must(t, "", append([]string{"eval", "--model", "TMP/prompts_rl"}, args...)...)
	results := must.JSON[problemResults](t, f.expand("TMP/out/results.json"))
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
	rows := lines[sampleRow](t, f.expand("TMP/out/rows.jsonl"))
	expect.Same(t, 240, len(rows), "rows")
	for _, row := range rows {
		expect.Require(t, row.Prompt != "" && row.Truth != "" && row.Correct == (row.Why == "") && row.Row >= 1 && row.Sample >= 1 && row.Sample <= 4, "%+v", row)
	}
	expect.True(t, results.Sets[0].Mean.Value != 0 && results.Sets[0].Rows[0].Truth == "aa", "%+v", results.Sets[0].PassScores)
	expect.Contains(t, out, "pass@1", "pass@4", "majority@4", f.expand("TMP/a.jsonl: task=prompts problems=30 samples_per_problem=4 temperature=1"))
	expect.Same(t, before, must.Read(t, f.expand("TMP/prompts_rl/logs/eval_results.json")), "the training run's results")

	out = f.must(t, "", append([]string{"compare", "TMP/new", "TMP/prompts_rl", "--kind-column", "sort"}, strings.Fields("--task prompts --dataset TMP/aa.jsonl --n 4 --max-new-tokens 2 --output TMP/compared.json")...)...)
	compared := must.JSON[problemComparison](t, f.expand("TMP/compared.json"))
	c := compared.Comparisons[0]
	expect.True(t, c.Problems == 30 && c.Mean.Difference > 0 && c.Mean.Interval[0] > 0 && len(c.Kinds) == 2 && c.Kinds[1].Mean.Difference == 0, "%+v", c)
	expect.Contains(t, out, "B - A", "pass@1 of 0", "majority@4")
	greedy := f.must(t, "", strings.Fields("eval --task sum_digits --model TMP/prompts_rl --eval-samples 6 --max-new-tokens 4 --digits-max 99")...)
	expect.True(t, strings.Contains(greedy, "evaluate at least 30 problems") && strings.Contains(greedy, "sum_digits: task=sum_digits problems=6 samples_per_problem=1 temperature=0") && strings.Contains(greedy, "kind"), "printed\n%s", greedy)
	f.refusals(t, "eval ", map[string]string{
		"--model TMP/new --task prompts":                                                   "task prompts needs --dataset FILE",
		"--model TMP/new --task prompts --dataset TMP/q.jsonl":                             `the data has no answers to compare with: TMP/q.jsonl has no column "answer"`,
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --n 0":                      "--n: 0 is out of range",
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --n 2 --temperature 0":      "--temperature 0: all 2 samples of a problem would be equal",
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --text-column a":            "--text-column: does not apply to task prompts",
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --digits-max 20":            "--digits-max: does not apply to task prompts",
		"--model TMP/new --task sum_digits --dataset TMP/aa.jsonl":                         "--dataset: does not apply to task sum_digits",
		"--model TMP/new --task prompts --dataset TMP/aa.jsonl --max-new-tokens 9999":      "no problem of 30 leaves room for 9999 new tokens",
		"--model TMP/new --task sum_digits --output TMP/prompts_rl/logs/eval_results.json": "holds the evaluation of the training run TMP/prompts_rl; choose another file",
		"--model TMP/new --n 3": "--n: does not apply to task intent",
	})
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
	results := must.JSON[problemResults](t, f.expand("TMP/r.json"))
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

// TestToolsInTraining teaches a small model to call a tool, then trains it with the tool that answers. Resumed from its first
// step, the run ends the same.
func TestToolsInTraining(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyChatModel(f.expand("TMP/start"), 1, 32, 7))
	f.write(t, "TMP/template.jinja", `{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}`+
		`{% for c in m.tool_calls or [] %}<tool_call>{"name":"{{ c.function.name }}","arguments":{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<eos>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}`)
	f.write(t, "TMP/tools.json", f.expand(`[{"name": "f", "run": "cmd:sh TMP/tool.sh"}]`))
	f.write(t, "TMP/tool.sh", `while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; echo "{\"id\":$id,\"result\":\"zz\"}"; done`+"\n")
	f.write(t, "TMP/reward.sh", f.expand(`while IFS= read -r line; do
echo "$line" >> TMP/asked
id=${line#*:}; id=${id%%,*}
case $line in *'"role":"tool"'*) echo "{\"id\":$id,\"reward\":1}" ;; *) echo "{\"id\":$id,\"reward\":0}" ;; esac
done
`))
	const tool = `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}]`
	const demo = `{"messages":[{"role":"user","content":"go %d"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"zz"},{"role":"assistant","content":"zz"}],` + tool + "}"
	f.rows(t, "TMP/demos.jsonl", 16, func(i int) string { return fmt.Sprintf(demo, i) })
	f.rows(t, "TMP/q.jsonl", 16, func(i int) string {
		return fmt.Sprintf(`{"messages":[{"role":"user","content":"go %d"}],"answer":"zz"}`, i)
	})
	f.must(t, "", strings.Fields(`train --task chat --dataset TMP/demos.jsonl --model TMP/start --chat-template TMP/template.jinja --tuning full --max-steps 150
		--batch-size 8 --learning-rate 0.01 --validation-share 0 --output-dir TMP`)...)
	prompts := func(dir string, more ...string) []string {
		return append(strings.Fields(`train --task prompts --mode rl_only --dataset TMP/q.jsonl --pretrained-model TMP/chat_supervised --tools TMP/tools.json
			--max-new-tokens 64 --eval-samples 4 --fresh-samples 0 --prompts-per-step 2 --samples-per-prompt 4 --save-steps 1 --output-dir `+dir), more...)
	}
	rewards := []string{"--reward", "answer,cmd:sh " + f.expand("TMP/reward.sh")}
	f.must(t, "", append(prompts("TMP/a", "--num-steps", "2"), rewards...)...)

	calls := 0.0
	for _, row := range must.Get(report.ReadMetrics(f.expand("TMP/a/prompts_rl/logs/metrics.jsonl")))(t) {
		if n, ok := row["tools/call_frequency"].(float64); ok {
			calls = max(calls, n)
		}
	}
	expect.True(t, calls > 0, "no calls in the metrics")
	asked := must.Read(t, f.expand("TMP/asked"))
	expect.Contains(t, asked, `"messages":[{"role":"user","content":"go `, `"},{"role":"assistant","content":"","tool_calls":[{"id":"call00000"`,
		`{"role":"tool","tool_call_id":"call00000","name":"f","content":"zz"}`, `"tools":{"calls":1,"failed":0,"malformed":0}`)
	answered := false
	for _, r := range lines[rl.Record](t, f.expand("TMP/a/prompts_rl/logs/completions.jsonl")) {
		if r.Tools != nil && r.Tools.Calls == 1 && len(r.Actions) == 2 {
			answered = true
			expect.Contains(t, r.Written, `<tool_call>{"name":"f","arguments":{}}</tool_call>`, "[tool]zz", "[assistant]")
			expect.True(t, !strings.Contains(strings.Join(r.Tokens, ""), "[tool]"), "the result is among the sampled tokens: %q", r.Tokens)
		}
	}
	expect.True(t, answered, "no completion has a call and an answer")
	const steps = "TMP/a/prompts_rl/checkpoints/"
	files := map[string]string{}
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", "state.json"} {
		files[name] = must.Read(t, f.expand(steps+"checkpoint-2/"+name))
	}
	f.must(t, "", append(prompts("TMP/a", "--num-steps", "2", "--resume-from-checkpoint", f.expand(steps+"checkpoint-1")), rewards...)...)
	for name, want := range files {
		expect.True(t, must.Read(t, f.expand(steps+"checkpoint-2/"+name)) == want, "%s differs after a resume", name)
	}
}

func TestToolsRefused(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyChatModel(f.expand("TMP/start"), 1, 32, 7))
	f.write(t, "TMP/tools.json", `[{"name": "f", "run": "cmd:true"}]`)
	f.write(t, "TMP/bad.json", `[{"name": "f"}]`)
	f.rows(t, "TMP/q.jsonl", 8, func(i int) string {
		return fmt.Sprintf(`{"prompt":"go %d","answer":"zz"}`, i)
	})
	for more, want := range map[string]string{
		"--tools TMP/tools.json":              "--tools: the model's chat template does not describe tools",
		"--tools TMP/tools.json --model tiny": "--tools: tools need a chat template",
		"--tools TMP/bad.json":                "--tools: TMP/bad.json:1:2: run: ",
		"--tools TMP/none.json":               "--tools: ",
		"--max-tool-calls 3":                  "--max-tool-calls: applies only with --tools FILE",
		"--tool-timeout 3":                    "--tool-timeout: applies only with --tools FILE",
	} {
		args := strings.Fields("train --task prompts --mode rl_only --dataset TMP/q.jsonl --output-dir TMP/out --eval-samples 2 " + more)
		if !strings.Contains(more, "--model") {
			args = append(args, "--model", "TMP/start")
		}
		f.refused(t, f.expand(want), args...)
	}
}
