package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// aLetter asks for one of several letters; an option sets the number of evaluation problems.
type aLetter struct {
	Letters string `option:"letters" default:"aeiou" help:"those to write"`
	Unknown string `option:"unknown" help:"those of which nobody knows whether they are right"`
	Held    int    `option:"held" range:"[0,)" help:"exercises to be judged by; 0 = they do not end"`
}

func init() {
	envs.Register(envs.Definition{Name: "a_letter", Help: "write one of some letters", Options: func() any { return &aLetter{} }})
}

func (t *aLetter) Task(envs.Setup) (envs.Task, error) {
	if t.Letters == "" {
		return nil, &envs.OptionError{Option: "letters", Err: errors.New("is empty")}
	}
	return t, nil
}

func (t *aLetter) Len(part envs.Part) int {
	if part == envs.Eval {
		return t.Held
	}
	return 0
}

func (t *aLetter) Episode(envs.Part, int) (envs.Env, error) { return t, nil }

func (*aLetter) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: "a letter? "}, nil
}

func (t *aLetter) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	if t.Unknown != "" && strings.Contains(t.Unknown, a.Text) {
		return envs.Step{}, fmt.Errorf("%w: a letter like any other", envs.ErrNotScored)
	}
	step := envs.Step{Keep: len(a.Text), Done: true, Info: &envs.Info{FormatOK: true, FoundBy: "letter", Answer: a.Text}}
	if a.Text != "" && strings.Contains(t.Letters, a.Text) {
		step.Reward, step.Info.Correct = 1, true
	}
	return step, nil
}

// TestCustomTask trains a custom task selected by name.
func TestCustomTask(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	options := strings.Fields(`train --task a_letter --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 1
		--eval-samples 4 --num-steps 25 --prompts-per-step 4 --samples-per-prompt 16 --rl-learning-rate 0.02 --output-dir TMP`)
	f.must(t, "", append(options, "--letters", "xyz", "--held", "4")...)
	var scores struct{ Before, After, Last, Fresh *rl.AnswerScores }
	dir := filepath.Join(f.tmp, "a_letter_rl")
	must.Do(t, files.LoadJSON(filepath.Join(dir, "logs", "eval_results.json"), &scores))
	expect.True(t, scores.Before.Accuracy == 0 && scores.After.Accuracy == 1, "right before: %v, after: %v; want 0 and 1", scores.Before.Accuracy, scores.After.Accuracy)
	expect.Contains(t, "\n"+must.Read(t, filepath.Join(dir, "config.yaml")), "\ntask: a_letter", "letters: xyz  # --letters",
		"held: 4  # --held")
	for wrong, want := range map[string]string{
		"--mode supervised_then_rl": `--mode: "supervised_then_rl": the only choice is rl_only`,
		"--size 3":                  "unknown option --size",
		"--leters a":                "unknown option --leters; did you mean --letters",
		"--letters=":                "--letters: is empty",
		"--held 3":                  "--eval-samples: 4: task a_letter has only 3",
		"--held -1":                 "--held: -1 is out of range; it must be at least 0",
		"--digits-max 99":           "does not apply to task a_letter",
	} {
		f.usage(t, want, append(options, strings.Fields(wrong)...)...)
	}
}

// TestUngradedSamples: samples that cannot be graded are reported and excluded from every figure.
func TestUngradedSamples(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.must(t, "", strings.Fields(`train --task a_letter --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 1 --eval-samples 2
		--num-steps 1 --prompts-per-step 1 --samples-per-prompt 2 --letters abcdefghijklmnopqrstuvwxyz --output-dir TMP`)...)
	eval := strings.Fields("eval --task a_letter --model TMP/a_letter_rl --limit 12 --n 4 --max-new-tokens 1 --letters abcdefghijklmnopqrstuvwxyz --output TMP/found.json --unknown")
	out := f.must(t, "", append(eval, "bcdfghjklmnpqrstvwxyz0123456789.,:;!?()")...)
	found := must.Into[problemResults](t, files.LoadJSON, filepath.Join(f.tmp, "found.json"))
	set, tried, right := found.Sets[0], 0, 0
	for _, row := range set.Rows {
		tried, right = tried+len(row.Samples), right+row.Correct
	}
	expect.True(t, set.Unscored != 0 && set.Unscored+tried == 48 && set.Failed == 0 && right != 0 && (set.N == 4 || set.Problems == 12), "%d samples, %d right, %+v", tried, right, set)
	want := fmt.Sprintf("warning: skipped %d samples that could not be scored; first error: problem", set.Unscored)
	expect.True(t, strings.Contains(out, want), "no %q in\n%s", want, out)
	var all strings.Builder
	for c := rune(' '); c < 0x3000; c++ {
		all.WriteRune(c)
	}
	all.WriteString("\n\t\uFFFD")
	_, _, stderr := f.rltrain("", append(eval, all.String())...)
	expect.True(t, strings.Contains(stderr, "could be scored; first error: problem 0: not judged: a letter like any other"), "%q", stderr)
}

// TestExampleModule builds the program of docs/example-task, a separate module, and trains with its task, reward,
// algorithm, source and model family.
func TestExampleModule(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "example-task")
	run := func(in, name string, args ...string) string {
		c := exec.CommandContext(t.Context(), name, args...)
		c.Dir = in
		out, err := c.CombinedOutput()
		expect.Require(t, err == nil, "%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		return string(out)
	}
	root := must.Get(filepath.Abs(filepath.Join("..", "..", "..")))(t)
	example := filepath.Join(root, "docs", "example-task")
	mod := filepath.Join(dir, "go.mod")
	run(example, "cp", "go.mod", "go.sum", dir)
	run(dir, "go", "mod", "edit", "-replace=github.com/rltrain/rltrain="+root, mod)
	run(example, "go", "build", "-modfile="+mod, "-o", program, ".")
	help := strings.Join(strings.Fields(run(dir, program, "--task", "count_letters", "--help-all")), " ")
	expect.Contains(t, help,
		"--word-length N", "brief: 1 for an answer of one word", "--max-steps N", "(default 400)", "short(words=N): 1 for a completion of few words",
		"words: words that score 1 (default 1)", "--keep-best X", "only with --algorithm best_of", "repeated: new completions to prompts", "--prompt-steps N", "only with --source repeated",
	)
	small := strings.Fields("--task count_letters --letters xy --eval-samples 2 --fresh-samples 2 --num-steps 2 --prompts-per-step 2 --samples-per-prompt 4")
	run(dir, program, append(small, strings.Fields("--tiny-layers 1 --tiny-hidden 32 --max-steps 2 --batch-size 4 --warmup-check-every 0 --reward accuracy,brief=0.1")...)...)

	// Load the trained model through the module's model family.
	model := filepath.Join(dir, "models", "count_letters_supervised")
	config := must.Read(t, filepath.Join(model, "config.json"))
	renamed := strings.NewReplacer(`"llama"`, `"letter_llama"`, `"hidden_size"`, `"width"`).Replace(config)
	must.Do(t, os.WriteFile(filepath.Join(model, "config.json"), []byte(renamed), 0o644))
	run(dir, program, append(small, "--mode", "rl_only", "--pretrained-model", model, "--output-dir", "own", "--algorithm", "best_of", "--keep-best", "0.5",
		"--source", "repeated", "--prompt-steps", "2", "--reward", "accuracy,short(words=2)=0.1", "--keep-completions", "-1", "--logging-steps", "1")...)
	for stage, name := range map[string]string{"models": "brief", "own": "short(words=2)"} {
		rows := must.Get(report.ReadMetrics(filepath.Join(dir, stage, "count_letters_rl", "logs", "metrics.jsonl")))(t)
		mean, ok := rows[1]["rewards/"+name+"/mean"].(float64)
		expect.True(t, ok && mean > 0, "%s: metrics %v", stage, rows[1])
	}
	var prompts [3]map[string]bool
	for _, r := range lines[rl.Record](t, filepath.Join(dir, "own", "count_letters_rl", "logs", "completions.jsonl")) {
		if prompts[r.Step] == nil {
			prompts[r.Step] = map[string]bool{}
		}
		prompts[r.Step][r.Shown] = true
	}
	diff := cmp.Diff(prompts[1], prompts[2])
	expect.True(t, diff == "" && len(prompts[1]) != 0, "the prompts of step 2 are not those of step 1: %s", diff)
}

// TestEnvironmentOfTheDocs trains in the environment of docs/environments.md.
func TestEnvironmentOfTheDocs(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	page := must.Read(t, "../../../docs/environments.md")
	_, code, ok := strings.Cut(page, "```python\n")
	code, _, closed := strings.Cut(code, "```")
	expect.Require(t, ok && closed, "no Python in the page")
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/guess.py", code)
	out := f.must(t, "", append(strings.Fields(`train --task env --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 1 --eval-samples 100 --eval-every 20
		--fresh-samples 0 --num-steps 40 --logging-steps 1 --prompts-per-step 8 --samples-per-prompt 8 --rl-learning-rate 0.02 --output-dir TMP`), "--env", f.expand("cmd:python3 TMP/guess.py"))...)
	before, after, rows := 0.0, 0.0, 0
	for _, row := range must.Get(report.ReadMetrics(f.expand("TMP/env_rl/logs/metrics.jsonl")))(t) {
		n, ok := row["failed_episodes"].(float64)
		if !ok {
			continue
		}
		rows++
		expect.True(t, n == 0, "%v episodes failed", n)
		accuracy, _ := row["accuracy"].(float64)
		if rows <= 3 {
			before += accuracy / 3
		}
		if rows > 30 {
			after += accuracy / 10
		}
	}
	expect.True(t, rows == 40 && after > before+0.08, "%d steps, success %.2f, then %.2f:\n%s", rows, before, after, out)
	f.refused(t, "--env: is needed", strings.Fields("train --task env --model tiny --output-dir TMP/x")...)
}
