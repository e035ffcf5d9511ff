package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

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
	scores := must.Into[struct{ Before, After, Last, Fresh *rl.AnswerScores }](t, files.LoadJSON, filepath.Join(f.tmp, "reverse_digits_rl", "logs", "eval_results.json"))
	expect.True(t, scores.Before.N == 2 && scores.After.N == 2 && scores.Last.N == 2 && scores.Fresh.N == 3 && scores.Fresh.Interval[1] != 0, "evaluations %+v", scores)
	f.must(t, "", with(options, "--mode", "supervised", "--warmup-until", "0", "--max-steps", "2", "--tiny-hidden", "64")...)
	saved := must.JSON[struct {
		Hidden int `json:"hidden_size"`
	}](t, filepath.Join(dir, "config.json"))
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
	f := started(t)
	f.must(t, "", exercise()...)
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
		expect.Contains(t, must.Read(t, filepath.Join(dir, name)), want...)
	}
	f.usage(t, "is a language model, trained on task sum_digits; use rltrain generate", "predict", "--model", dir)
	f.usages(t, "", map[string]string{
		"eval --dataset x.jsonl --model " + dir:        "trained on task sum_digits; pass --task sum_digits",
		"compare --dataset x.jsonl " + dir + " " + dir: "trained on task sum_digits; pass --task sum_digits",
	})
	f.refused(t, "did you mean "+dir+"?", "generate", "--model", "TMP/out/sum_digits_rll", "--input", "TMP/tried.jsonl")
	f.refused(t, "out has sum_digits_rl", "generate", "--model", "TMP/out/another", "--input", "TMP/tried.jsonl")
	// The folder of all runs is not a model, but the error names the models in it.
	f.refused(t, "did you mean "+dir+"?", "generate", "--model", "TMP/out", "--input", "TMP/tried.jsonl")
}

// started has a language model in TMP/start.
func started(t *testing.T) folders {
	t.Helper()
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	return f
}

// exercise are the options of a very short run.
func exercise() []string {
	return strings.Fields(`train --task sum_digits --mode rl_only --pretrained-model TMP/start
		--num-steps 1 --prompts-per-step 2 --samples-per-prompt 2 --eval-samples 2 --fresh-samples 0 --max-new-tokens 6 --output-dir TMP/out`)
}

// TestRewards trains with a list of rewards, and fails if each of them fails.
func TestRewards(t *testing.T) {
	f := started(t)
	options := exercise()
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
	f.usages(t, "--task gsm8k --dataset TMP/train.jsonl --model TMP/start --output-dir TMP/out --eval-samples 2 ", map[string]string{
		"--reward score":                  "--reward: score asks a language model: name one with --judge",
		"--reward accuracy --judge TMP/x": "--judge: no reward in accuracy asks a language model",
	})
}

// TestLongPrompts skips prompts longer than the context, and says what to do if all are.
func TestLongPrompts(t *testing.T) {
	f := started(t)
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
	f.refused(t, "10 of 10 training prompts leave no room for 4 new tokens in the model's 2048 positions: … with --few-shot",
		append(options, "--dataset", "TMP/all.jsonl", "--few-shot", "1")...)
}

func TestTooManySolutions(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.usage(t, "--batch-size: 1048576: 5 updates need 5242880 demonstrations, all made before the first; the limit is 4194304",
		strings.Fields("train --task sum_digits --mode supervised --batch-size 1048576 --max-steps 5 --tiny-layers 1 --tiny-hidden 32 --output-dir TMP")...)
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
	earned := must.Into[[]map[string]float64](t, files.LoadJSON, f.expand("TMP/code_rl/logs/rewards.json"))
	expect.Require(t, len(earned) == 2, "%v", earned)
	for i, row := range earned {
		mean, ok := row["rewards/tests/mean"]
		expect.True(t, row["step"] == float64(i+1) && ok && mean >= 0 && mean <= 2 && len(row) >= 4, "row %d: %v", i, row)
	}
	programs := must.JSON[[]struct {
		Problem, Total int
		Program        string
	}](t, f.expand("TMP/code_rl/results/results.json"))
	expect.True(t, len(programs) == 2 && strings.HasPrefix(programs[0].Program, "def f(x):") && programs[1].Problem == 1 && programs[1].Total != 0, "%+v", programs)
	scores := must.JSON[struct{ After, Fresh *rl.AnswerScores }](t, f.expand("TMP/code_rl/logs/eval_results.json"))
	expect.True(t, scores.After.N == 2 && scores.Fresh.N == 2, "%+v", scores)
}

// TestModelsAsRewards trains language models and classifiers on a classifier's score.
func TestModelsAsRewards(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.questions(t, "TMP/q.jsonl", 20)
	critic := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolMean, "bad", "good")
	short := func(spec string) []string {
		return strings.Fields(`train --task prompts --dataset TMP/q.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 2 --output-dir TMP
			--eval-samples 4 --fresh-samples 0 --num-steps 2 --eval-every 2 --prompts-per-step 2 --samples-per-prompt 4 --reward ` + spec)
	}
	spec := "model:" + critic + "#good"
	f.must(t, "", short(spec+"=2,expr:'length' --logging-steps 1")...)
	for _, row := range must.Get(report.ReadMetrics(f.expand("TMP/prompts_rl/logs/metrics.jsonl")))(t)[1:3] {
		mean, ok := row["rewards/"+spec+"/mean"].(float64)
		expect.True(t, ok && mean > 0 && mean < 1 && row["failed_rewards"] == 0.0, "metrics %v", row)
	}
	for spec, want := range map[string]string{
		"model:" + critic:           `--reward: reward "model:` + critic,
		"model:" + critic + "#fine": `has no label "fine"`,
		"model:TMP/nowhere":         "nowhere",
		"rubric:TMP/q.jsonl":        "not a list of questions and weights",
	} {
		f.usage(t, want, short(spec)...)
	}
	f.write(t, "TMP/rubric.yaml", "- question: Is it right?\n")
	f.usage(t, "rubric.yaml asks a language model: name one with --judge", short("rubric:TMP/rubric.yaml")...)
	f.usage(t, "--judge: no reward asks a judge: add --reward rubric:FILE",
		strings.Fields("train --task sum_digits --judge TMP/x --output-dir TMP")...)
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
	metrics := must.Read(t, f.expand("TMP/small/sum_digits_rl/logs/metrics.jsonl"))
	expect.True(t, strings.Count(metrics, `"divergence":`) == 2, "want the KL of 2 steps:\n%s", metrics)
	f.must(t, "", strings.Fields(strings.NewReplacer("--algorithm distill", "--algorithm sdft", "TMP/small --", "TMP/self --").Replace(distill))...)
	metrics = must.Read(t, f.expand("TMP/self/sum_digits_rl/logs/metrics.jsonl"))
	expect.True(t, strings.Count(metrics, `"teacher/context_ratio":1,`) == 2, "want a solution for each completion of 2 steps:\n%s", metrics)
	f.usages(t, "", map[string]string{
		distill + "--teacher self": "needs teacher_context",
		strings.Replace(distill, "--algorithm distill --", "--algorithm sdpo --", 1) + "--success-reward-threshold 1 --teacher-prompt x": "--teacher-prompt: must contain {prompt}",
		distill:                           "needs teacher",
		distill + "--teacher TMP/nowhere": "--teacher: ",
		distill + "--teacher TMP/large/sum_digits_supervised --jsd-beta 0.3":                                                 "--jsd-beta: applies only with --divergence jsd",
		distill + "--teacher TMP/large/sum_digits_supervised --teacher-url http://127.0.0.1:1":                               "--teacher-url: applies only with --divergence sampled",
		distill + "--divergence sampled --teacher x --teacher-url http://127.0.0.1:1":                                        "--teacher-url: http://127.0.0.1:1: ",
		distill + "--teacher TMP/large/sum_digits_supervised --divergence other":                                             "--divergence: ",
		strings.Replace(distill, "--algorithm distill", "--algorithm grpo", 1) + "--teacher TMP/large/sum_digits_supervised": "--teacher: applies only with --algorithm distill",
	})
}

// TestAlarmsOfRuns provokes each alarm with a run that fails in that way. Each alarm is logged once, with advice; a
// healthy run raises none.
func TestAlarmsOfRuns(t *testing.T) {
	const (
		letters = `--task prompts --dataset TMP/letters.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --prompts-per-step 4 --samples-per-prompt 8 --fresh-samples 0 --eval-samples 30 --eval-every 99 `
		one     = letters + `--max-new-tokens 1 `
		several = letters + `--max-new-tokens 16 --stop a,b,c,d,e,f,g,h `
		fast    = `--rl-learning-rate 0.02 `
	)
	f := folders{tmp: t.TempDir()}
	f.alarming(t)
	limit := []string{"missing_end", "truncation"} // one token is too few to end a completion
	for _, test := range []struct {
		name, args string
		want       []string
	}{
		{"all earn the same", one + `--num-steps 6 --allow-no-signal --reward expr:'1'`, append([]string{"equal_rewards"}, limit...)},
		{"a kind that is never right", one + fast + `--num-steps 14 --kind-column sort`, []string{"equal_rewards", "missing_end", "never_right", "truncation"}},
		{"shorter and shorter", several + fast + `--num-steps 40 --reward expr:'-length'`, []string{"equal_rewards", "length_drift", "tier_drift"}},
		{"one reward dominates", several + `--num-steps 6 --reward expr:'length',expr:'text~contains~"b"'=0.1`, []string{"dominant_reward"}},
		{"far from the reference", one + `--rl-learning-rate 0.05 --num-steps 25 --kl-coef 0.001 --reward expr:'text~in~["a","e","i"]'`, []string{"equal_rewards", "kl", "missing_end", "strict", "truncation"}},
		{"judgements that fail", one + `--num-steps 2 --reward cmd:sh~TMP/failing.sh`, []string{"failed_rewards"}},
		{"what is right is not paid any more", one + fast + `--num-steps 50 --allow-no-signal --reward cmd:sh~TMP/turning.sh`, []string{"collapse", "equal_rewards", "missing_end", "strict", "truncation"}},
		{"texts learnt by heart", `--task chat --dataset TMP/noise.jsonl --model tiny --tiny-layers 1 --tiny-hidden 64 --epochs 16 --learning-rate 0.01 --lr-scheduler-type constant_with_warmup --validation-share 0.5 --batch-size 4`, []string{"overfitting"}},
		{"well", several + `--num-steps 12 --reward expr:'text~contains~"b"'`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			args := strings.Fields(f.expand(test.args) + " --output-dir " + out)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "~", " ")
			}
			f.says(t, "", args...)
			logs, err := filepath.Glob(filepath.Join(out, "*", "logs", "training_log.txt"))
			expect.Require(t, err == nil && len(logs) == 1, "%q, %v", logs, err)
			log := must.Get(os.ReadFile(logs[0]))(t)
			var got []string
			for _, alarm := range regexp.MustCompile(`(?m)^warning: (\w+): (.*)$`).FindAllStringSubmatch(string(log), -1) {
				got = append(got, alarm[1])
				expect.True(t, regexp.MustCompile(`^(add|choose|fix|hold out|go back|lower|raise|read|train|try|use) .*: `).MatchString(alarm[2]), "no advice comes first in %q", alarm[0])
			}
			slices.Sort(got)
			expect.Equal(t, test.want, got, fmt.Sprintf("alarms:\n%s", log))
		})
	}
}

// alarming writes the data and reward programs of TestAlarmsOfRuns.
func (f folders) alarming(t *testing.T) {
	t.Helper()
	f.rows(t, "TMP/letters.jsonl", 60, func(i int) string {
		return fmt.Sprintf(`{"prompt":"Name a letter, question %d: ","answer":%q,"sort":%q}`, i, []string{"a", "zz"}[i%2], []string{"short", "long"}[i%2])
	})
	const code = "bdfaecfdabcaefdcbeadfcbaedfbcdeafcbdaefc"
	f.rows(t, "TMP/noise.jsonl", 24, func(i int) string { return fmt.Sprintf(`{"text":%q}`, code[i:i+8]+code[(7*i)%30:(7*i)%30+4]) })
	answering := func(reward string) string {
		return "n=0\nwhile IFS= read -r line; do\n n=$((n+1)); id=${line#*:}; id=${id%%,*}; r=0\n " + reward + "\ndone\n"
	}
	say := `echo "{\"id\":$id,\"reward\":$r}"`
	f.write(t, "TMP/failing.sh", answering(`if [ $((n % 5)) = 0 ]; then echo "{\"id\":$id,\"error\":\"no\"}"; else r=$((n % 3)); `+say+"; fi"))
	f.write(t, "TMP/turning.sh", answering(`case $line in *'"text":"a"'*) r=1 ;; esac; [ $n -gt 800 ] && r=$((1 - r)); `+say))
}

// TestTrial describes a run of both stages before it starts, and leaves no files.
func TestTrial(t *testing.T) {
	f := started(t)
	t.Setenv("TMPDIR", f.tmp)
	before := f.files(t)
	run := `--task sum_digits --mode supervised_then_rl --tiny-layers 1 --tiny-hidden 32 --warmup-check-every 0 --max-steps 7 --num-steps 9 --prompts-per-step 3
		--samples-per-prompt 3 --minibatches 2 --algorithm grpo --update-epochs 1 --max-new-tokens 6 --output-dir TMP/out --reward expr:'length'`
	for _, command := range []string{"doctor train " + run, "train " + run + " --dry-run"} {
		code, out, errs := inProcess(t, f, strings.Fields(command)...)
		expect.Require(t, code == 0 && errs == "", "%s: exit code %d, %q", command, code, errs)
		expect.Contains(t, out,
			"sum_digits: supervised fine-tuning of all weights\n", "  steps             7\n", "trained on", `"<eos>"  yes`, f.expand("  output            TMP/out/sum_digits_supervised\n"),
			"sum_digits: reinforcement learning with grpo\n  starts from       the dry run", "  steps             9\n", "9 samples with", "2 updates", "  measured          2 samples with", "rollout ",
			"First prompt\n  sum [", "Rewards of 2 samples", "expr:length ", "MiB in this dry run\n", "  extrapolated      at most ",
		)
	}
	after := f.files(t)
	expect.True(t, len(after) == len(before), "the trial left %d files", len(after)-len(before))
	if code, out, errs := inProcess(t, f, "--task", "sum_digits", "--print-config", "--seed", "7"); code != 0 || !strings.Contains(out, "seed: 7  # --seed\n") || !strings.Contains(out, "num_steps: ") {
		t.Errorf("--print-config: exit code %d, %q, %q", code, out, errs)
	}
}

// TestTrialIsBounded asks for more than could be computed in a test: a dry run's work does not depend on these options.
func TestTrialIsBounded(t *testing.T) {
	f := started(t)
	f.write(t, "TMP/long.jsonl", strings.Repeat(`{"text": "`+strings.Repeat("one two three ", 400)+"\"}\n", 64))
	measured := regexp.MustCompile(`measured +(\d+) samples? with (\d+) tokens`)
	for _, command := range []string{
		"--task sum_digits --mode rl_only --model TMP/start --num-steps 100000 --prompts-per-step 4096 --samples-per-prompt 64 --eval-samples 100000 --update-epochs 64 --algorithm grpo",
		"--task chat --model tiny --dataset TMP/long.jsonl --batch-size 64 --max-length 4096 --epochs 1000",
	} {
		code, out, errs := inProcess(t, f, strings.Fields(f.expand(command+" --dry-run --output-dir TMP/out"))...)
		found := measured.FindStringSubmatch(out)
		expect.Require(t, code == 0 && found != nil, "%s: exit code %d, %q\n%s", command, code, errs, out)
		samples, _ := strconv.Atoi(found[1])
		tokens, _ := strconv.Atoi(found[2])
		expect.True(t, samples <= 2 && tokens <= 512, "%s: trained on %d samples with %d tokens, want at most 2 with 512", command, samples, tokens)
	}
}

// inProcess runs the program and captures the process's standard output.
func inProcess(t *testing.T, f folders, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	out := must.Get(os.CreateTemp(t.TempDir(), "out"))(t)
	old := os.Stdout
	os.Stdout = out
	code, _, stderr = f.rltrain("", args...)
	os.Stdout = old
	data := must.Get(os.ReadFile(out.Name()))(t)
	return code, string(data), stderr
}

// TestAdapterWithoutModulesIsRefused before a folder is created; the error lists the available modules.
func TestAdapterWithoutModulesIsRefused(t *testing.T) {
	f := started(t)
	f.refused(t, `lora: target "nothing_so" matches no module; choose from model.layers.*.self_attn.q_proj`,
		strings.Fields("--task sum_digits --mode rl_only --model TMP/start --use-lora --lora-target-modules nothing_so --output-dir TMP/out")...)
	_, err := os.Stat(f.expand("TMP/out/sum_digits_rl"))
	expect.True(t, errors.Is(err, fs.ErrNotExist), "the run's folder: %v, want none", err)
}
