package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestWarmUpOfDigits: a policy that starts above the warm-up threshold is passed on unchanged, next to one of another
// size in the same folder. RL continues in the prompt format the policy was trained on.
func TestWarmUpOfDigits(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	options := strings.Fields(`train --task reverse_digits --tiny-layers 1 --tiny-hidden 32 --eval-samples 2 --max-new-tokens 8 --output-dir TMP`)
	f.must(t, "", with(options, "--mode", "supervised", "--warmup-until", "0", "--max-steps", "2")...)
	dir := filepath.Join(f.tmp, "reverse_digits_supervised")
	got := must.Read(t, filepath.Join(dir, "logs", "training_log.txt"))
	expect.True(t, strings.Contains(got, "Supervised training complete after 0 updates"), "log:\n%s", got)
	f.must(t, "", append(drop(options, "--tiny-layers", "--tiny-hidden"), "--mode", "rl_only", "--pretrained-model", dir,
		"--num-steps", "1", "--prompts-per-step", "2", "--samples-per-prompt", "2", "--fresh-samples", "3")...)
	var scores struct{ Before, After, Last, Fresh *rl.AnswerScores }
	must.Do(t, files.LoadJSON(filepath.Join(f.tmp, "reverse_digits_rl", "logs", "eval_results.json"), &scores))
	expect.True(t, scores.Before.N == 2 && scores.After.N == 2 && scores.Last.N == 2 && scores.Fresh.N == 3 && scores.Fresh.Interval[1] != 0, "evaluations %+v", scores)
	f.must(t, "", with(options, "--mode", "supervised", "--warmup-until", "0", "--max-steps", "2", "--tiny-hidden", "64")...)
	var saved struct {
		Hidden int `json:"hidden_size"`
	}
	must.JSON(t, filepath.Join(dir, "config.json"), &saved)
	expect.Same(t, 64, saved.Hidden, "a model of width")
	// The previous run stays complete, and its name did not point to the new run until that was written.
	for path, want := range map[string]string{dir: "tiny_hidden: 64", dir + ".1": "tiny_hidden: 32"} {
		got := must.Read(t, filepath.Join(path, "config.yaml"))
		expect.True(t, strings.Contains(got, want), "%s/config.yaml lacks %q:\n%s", path, want, got)
	}
	for _, name := range []string{"logs/training_log.txt", "README.md"} {
		got := must.Read(t, filepath.Join(dir, name))
		expect.True(t, !strings.Contains(got, ".new"), "%s names the folder of a run under way:\n%s", name, got)
	}
	for range 3 {
		f.must(t, "", with(options, "--mode", "supervised", "--warmup-until", "0", "--max-steps", "2", "--keep-runs", "1")...)
	}
	for name, want := range map[string]bool{".1": true, ".2": false} {
		_, err := os.Stat(dir + name)
		expect.True(t, (err == nil) == want, "with --keep-runs 1 the run %s%s: there %v, want %v", filepath.Base(dir), name, err == nil, want)
	}
}

// TestFilesOfALanguageModelRun: example prompts, a model card, and a report of its completions.
func TestFilesOfALanguageModelRun(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	f.must(t, "", drop(exercise(), "--tiny-layers", "--tiny-hidden")...)
	dir := f.expand("TMP/out/sum_digits_rl")
	f.says(t, "", "generate", "--model", dir, "--input", dir+"/logs/try.jsonl", "--output", "TMP/tried.jsonl", "--max-new-tokens", "4")
	rows := strings.Count(must.Read(t, f.expand("TMP/tried.jsonl")), "\n")
	expect.True(t, rows == 3, "%d prompts to try, want 3", rows)
	f.must(t, "", "report", dir)
	for name, want := range map[string][]string{
		"README.md":      {"pipeline_tag: text-generation", "rltrain generate --model . --input logs/try.jsonl", "| before", "num_steps"},
		"report.html":    {"<td>before</td><td>2</td>", "<h3>Held-out accuracy", "<h2>Completions</h2>"},
		"logs/try.jsonl": {`{"prompt":"`},
	} {
		got := must.Read(t, filepath.Join(dir, name))
		expect.Contains(t, got, want...)
	}
	f.usage(t, "is a language model, trained on task sum_digits; use rltrain generate", "predict", "--model", dir)
	for args, want := range map[string]string{
		"eval --dataset x.jsonl --model " + dir:        "trained on task sum_digits; pass --task sum_digits",
		"compare --dataset x.jsonl " + dir + " " + dir: "trained on task sum_digits; pass --task sum_digits",
	} {
		f.usage(t, want, strings.Fields(args)...)
	}
	f.refused(t, "did you mean "+dir+"?", "generate", "--model", "TMP/out/sum_digits_rll", "--input", "TMP/tried.jsonl")
	f.refused(t, "out has sum_digits_rl", "generate", "--model", "TMP/out/another", "--input", "TMP/tried.jsonl")
	// The folder of all runs is not a model, but the error names the models in it.
	f.refused(t, "did you mean "+dir+"?", "generate", "--model", "TMP/out", "--input", "TMP/tried.jsonl")
}

// exercise are the options of a very short run.
func exercise(more ...string) []string {
	return append(strings.Fields(`train --task sum_digits --mode rl_only --tiny-layers 1 --tiny-hidden 32 --pretrained-model TMP/start
		--num-steps 1 --prompts-per-step 2 --samples-per-prompt 2 --eval-samples 2 --fresh-samples 0 --max-new-tokens 6 --output-dir TMP/out`), more...)
}

// TestRewards trains with a list of rewards, and fails if each of them fails.
func TestRewards(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	options := drop(exercise(), "--tiny-layers", "--tiny-hidden")
	f.must(t, "", append(options, "--reward", "accuracy,expr:'length'=0.5")...)
	rows := must.Get(report.ReadMetrics(f.expand("TMP/out/sum_digits_rl/logs/metrics.jsonl")))(t)
	if reward, length := rows[1]["reward"].(float64), rows[1]["rewards/expr:length/mean"].(float64); reward <= 0 || reward != length/2 {
		t.Errorf("reward %v, want the mean length %v", reward, length)
	}
	for reward, want := range map[string]string{
		"expr:'1/0'": "rewards failed for all 4 samples",
		"acuracy":    `--reward: unknown reward "acuracy"; did you mean "accuracy"?`,
		"score":      `--reward: unknown reward "score"`,
	} {
		f.refused(t, want, append(options, "--reward", reward)...)
	}
	f.problems(t, "TMP/train.jsonl", 0, 20)
	for args, want := range map[string]string{
		"--reward score":                  "--reward: score asks a language model: name one with --judge",
		"--reward accuracy --judge TMP/x": "--judge: no reward in accuracy asks a language model",
	} {
		code, _, stderr := f.rltrain("", append(strings.Fields("--task gsm8k --dataset TMP/train.jsonl --model TMP/start --output-dir TMP/out --eval-samples 2"), strings.Fields(args)...)...)
		expect.True(t, code == shared.ExitUsage && strings.Contains(stderr, want), "%s: exit code %d, %q; want %q", args, code, stderr, want)
	}
}

// TestLongPrompts skips prompts longer than the context, and says what to do if all are.
func TestLongPrompts(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	f.problems(t, "TMP/train.jsonl", 0, 10)
	long := strings.Repeat("x", 3000)
	f.write(t, "TMP/some.jsonl", must.Read(t, f.expand("TMP/train.jsonl"))+`{"question": "`+long+`", "answer": "#### 1"}`+"\n")
	f.write(t, "TMP/all.jsonl", `{"question": "`+long+`", "answer": "#### 1"}`+"\n"+must.Read(t, f.expand("TMP/train.jsonl")))
	options := strings.Fields(`--task gsm8k --model TMP/start --eval-dataset TMP/test.jsonl --num-steps 1 --prompts-per-step 20 --num-update-steps 2
		--rl-batch-size 2 --max-line-tokens 4 --max-trajectory-steps 1 --max-new-tokens 8 --eval-samples 2 --output-dir TMP/out`)
	f.problems(t, "TMP/test.jsonl", 50, 4)
	f.must(t, "", append(options, "--dataset", "TMP/some.jsonl", "--few-shot", "0")...)
	log := must.Read(t, f.expand("TMP/out/gsm8k_rl/logs/training_log.txt"))
	want := "warning: 1 of 11 training prompts leave no room for 4 new tokens"
	expect.True(t, strings.Contains(log, want), "no %q in\n%s", want, log)
	code, _, stderr := f.rltrain("", append(options, "--dataset", "TMP/all.jsonl", "--few-shot", "1")...)
	want = "10 of 10 training prompts leave no room for 4 new tokens in the model's 2048 positions: lower --max-new-tokens, or show fewer examples with --few-shot"
	expect.True(t, code == 1 && strings.Contains(stderr, want), "exit code %d, %q; want %q", code, stderr, want)
}

func TestTooManySolutions(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	code, _, stderr := f.rltrain("", strings.Fields("train --task sum_digits --mode supervised --batch-size 1048576 --max-steps 5 --tiny-layers 1 --tiny-hidden 32 --output-dir TMP")...)
	want := "--batch-size: 1048576: 5 updates need 5242880 demonstrations, all made before the first; the limit is 4194304"
	expect.True(t, code == 2 && strings.Contains(stderr, want), "exit code %d, %q, want %q", code, stderr, want)
}

// TestCodeEndToEnd trains on demonstrations of one-line problems, then on their tests, which Python runs.
func TestCodeEndToEnd(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	code, _, complaint := f.rltrain("", strings.Fields("--task code --tiny-layers 1 --tiny-hidden 32 --max-steps 4 --batch-size 4 --warmup-check-every 0 --num-steps 2 --logging-steps 1 "+
		"--prompts-per-step 2 --samples-per-prompt 2 --eval-samples 2 --fresh-samples 2 --max-new-tokens 24 --reward tests,style=0.1 --threads 1 --output-dir TMP")...)
	if strings.Contains(complaint, "no interpreter") || strings.Contains(complaint, "no sandbox") {
		t.Skip(complaint)
	}
	expect.Require(t, code == 0 && complaint == "", "exit code %d: %s", code, complaint)
	var earned []map[string]float64
	must.Do(t, files.LoadJSON(f.expand("TMP/code_rl/logs/rewards.json"), &earned))
	expect.Require(t, len(earned) == 2, "%v", earned)
	for i, row := range earned {
		mean, ok := row["rewards/tests/mean"]
		expect.True(t, row["step"] == float64(i+1) && ok && mean >= 0 && mean <= 2 && len(row) >= 4, "row %d: %v", i, row)
	}
	var programs []struct {
		Problem, Passed, Total int
		Class, Program, Kind   string
	}
	err := files.LoadJSON(f.expand("TMP/code_rl/results/results.json"), &programs)
	expect.True(t, err == nil && len(programs) == 2 && strings.HasPrefix(programs[0].Program, "def f(x):") && programs[1].Problem == 1 && programs[1].Total != 0, "%+v, %v", programs, err)
	var scores struct{ Before, After, Last, Fresh *rl.AnswerScores }
	err = files.LoadJSON(f.expand("TMP/code_rl/logs/eval_results.json"), &scores)
	expect.True(t, err == nil && scores.After.N == 2 && scores.Fresh.N == 2, "%+v, %v", scores, err)
}

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
		code, _, stderr := f.rltrain("", args...)
		expect.True(t, code == 2 && strings.Contains(stderr, want) && strings.Count(stderr, "\n") == 1, "%v: exit code %d, error %q; want 2, …%s…", args, code, stderr, want)
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

// TestDistillEndToEnd distils a teacher of another width, and refuses models that cannot be a teacher.
func TestDistillEndToEnd(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	const supervised = "train --task sum_digits --mode supervised --tiny-layers 1 --max-steps 1 --warmup-check-every 0 --eval-samples 2 --threads 1 "
	f.must(t, "", strings.Fields(supervised+"--tiny-hidden 64 --output-dir TMP/large")...)
	f.must(t, "", strings.Fields(supervised+"--tiny-hidden 32 --output-dir TMP/small")...)
	const distill = "train --task sum_digits --mode rl_only --pretrained-model TMP/small/sum_digits_supervised --algorithm distill --num-steps 2 --eval-every 0 " +
		"--prompts-per-step 2 --samples-per-prompt 2 --max-new-tokens 4 --eval-samples 2 --fresh-samples 0 --threads 1 --output-dir TMP/small --logging-steps 1 "
	f.must(t, "", strings.Fields(distill+"--teacher TMP/large/sum_digits_supervised --divergence jsd --jsd-beta 0.3")...)
	metrics, err := os.ReadFile(f.expand("TMP/small/sum_digits_rl/logs/metrics.jsonl"))
	expect.True(t, err == nil && strings.Count(string(metrics), `"divergence":`) == 2, "want the KL of 2 steps: %v\n%s", err, metrics)
	f.must(t, "", strings.Fields(strings.NewReplacer("--algorithm distill", "--algorithm sdft", "TMP/small --", "TMP/self --").Replace(distill))...)
	metrics, err = os.ReadFile(f.expand("TMP/self/sum_digits_rl/logs/metrics.jsonl"))
	expect.True(t, err == nil && strings.Count(string(metrics), `"teacher/context_ratio":1,`) == 2, "want a solution for each completion of 2 steps: %v\n%s", err, metrics)
	for args, want := range map[string]string{
		distill + "--teacher self": "needs teacher_context",
		strings.Replace(distill, "--algorithm distill --", "--algorithm sdpo --", 1) + "--success-reward-threshold 1 --teacher-prompt x": "--teacher-prompt: must contain {prompt}",
		distill:                           "needs teacher",
		distill + "--teacher TMP/nowhere": "--teacher: ",
		distill + "--teacher TMP/large/sum_digits_supervised --jsd-beta 0.3":                                                 "--jsd-beta: applies only with --divergence jsd",
		distill + "--teacher TMP/large/sum_digits_supervised --teacher-url http://127.0.0.1:1":                               "--teacher-url: applies only with --divergence sampled",
		distill + "--divergence sampled --teacher x --teacher-url http://127.0.0.1:1":                                        "--teacher-url: http://127.0.0.1:1: ",
		distill + "--teacher TMP/large/sum_digits_supervised --divergence other":                                             "--divergence: ",
		strings.Replace(distill, "--algorithm distill", "--algorithm grpo", 1) + "--teacher TMP/large/sum_digits_supervised": "--teacher: applies only with --algorithm distill",
	} {
		f.usage(t, want, strings.Fields(args)...)
	}
}
