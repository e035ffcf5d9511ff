package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rltrain/envs"
	"rltrain/rl"
)

// aLetter asks for one of some letters; there are as many exercises to be judged by as it is told.
type aLetter struct {
	letters string
	held    int
}

func init() {
	envs.Register("a_letter", func(_ uint64, settings envs.Settings) (envs.Task, error) {
		task := &aLetter{letters: "aeiou"}
		err := settings.Read(map[string]any{"letters": &task.letters, "held": &task.held})
		if err == nil && task.letters == "" {
			err = errors.New("letters is empty")
		}
		return task, err
	})
}

func (t *aLetter) Len(part envs.Part) int {
	if part == envs.Eval {
		return t.held
	}
	return 0
}

func (t *aLetter) Episode(envs.Part, int) (envs.Env, error) { return t, nil }

func (*aLetter) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: "a letter? "}, nil
}

func (t *aLetter) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	step := envs.Step{Keep: len(a.Text), Done: true, Info: &envs.Info{Formatted: true, Tier: "letter", Answer: a.Text}}
	if a.Text != "" && strings.Contains(t.letters, a.Text) {
		step.Reward, step.Info.Correct = 1, true
	}
	return step, nil
}

// TestOwnTask chooses a task by its name in a program that was built with it, and learns it.
func TestOwnTask(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	options := strings.Fields(`train --task a_letter --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 1
		--eval-samples 4 --num-steps 25 --prompts-per-step 4 --samples-per-prompt 16 --rl-learning-rate 0.02 --output-dir TMP`)
	f.must(t, "", append(options, "--task-options", "letters=xyz,held=4")...)
	var scores struct{ Before, After rl.AnswerScores }
	dir := filepath.Join(f.tmp, "a_letter_rl")
	if err := rl.LoadJSON(filepath.Join(dir, "logs", "eval_results.json"), &scores); err != nil {
		t.Fatal(err)
	}
	if scores.Before.Accuracy != 0 || scores.After.Accuracy != 1 {
		t.Errorf("right before: %v, after: %v; want 0 and 1", scores.Before.Accuracy, scores.After.Accuracy)
	}
	repeats, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\ntask: a_letter", `task_options: ["letters=xyz", "held=4"]`} {
		if !strings.Contains("\n"+string(repeats), want) {
			t.Errorf("config.yaml has no %q:\n%s", want, repeats)
		}
	}
	for wrong, want := range map[string]string{
		"--mode supervised_then_rl": "no worked solutions to imitate",
		"--task-options size=3":     "option size does not apply",
		"--task-options letters":    `"letters" is not NAME=VALUE`,
		"--task-options letters=":   "letters is empty",
		"--task-options held=3":     "a_letter has 3 episodes to be judged by",
		"--digits-max 99":           "does not apply to task a_letter",
	} {
		code, _, stderr := f.rltrain("", append(options, strings.Fields(wrong)...)...)
		if code != exitUsage || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q; want %q", wrong, code, stderr, want)
		}
	}
}
