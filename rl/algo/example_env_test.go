package algo_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"rltrain/envs"
	"rltrain/rl/algo"
)

// vowelThenDigit is a task of two turns: asked for a vowel, then for a digit, the policy is paid for each.
type vowelThenDigit struct{}

func (vowelThenDigit) Len(envs.Part) int { return 0 }

func (vowelThenDigit) Episode(envs.Part, int) (envs.Env, error) { return &interview{}, nil }

func init() {
	envs.Register("vowel_then_digit", func(uint64, envs.Settings) (envs.Task, error) { return vowelThenDigit{}, nil })
}

// interview is one episode of it.
type interview struct {
	turn  int
	right int
}

func (v *interview) Reset(context.Context) (envs.Observation, error) {
	*v = interview{}
	return envs.Observation{Text: "a vowel? "}, nil
}

func (v *interview) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	step := envs.Step{Keep: len(a.Text), Append: "\na digit? ", Done: v.turn == 1}
	if wanted := []string{"aeiou", "0123456789"}[v.turn]; a.Text != "" && strings.Contains(wanted, a.Text) {
		step.Reward = 1
		v.right++
	}
	if v.turn++; step.Done {
		step.Append = ""
		step.Info = &envs.Info{Correct: v.right == 2, Formatted: true, Tier: "turns", Answer: a.Text}
	}
	return step, nil
}

// A task of one's own has episodes of as many turns as it likes. Its text stands in the trajectory as tokens
// that are given, and only what the policy wrote is learnt from.
func ExampleTokenRL() {
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	model := filepath.Join(dir, "tiny")
	check(algo.TinyModel(model, 2, 32, 1))
	policy := must(algo.NewTokenPolicy(algo.TokenPolicyConfig{Dir: model, Full: true}))
	defer policy.Close()
	task := must(envs.New("vowel_then_digit", 1, nil))
	result := must(algo.TokenRL(context.Background(), policy, task, algo.TokenRLConfig{
		Algorithm: algo.GRPO, Steps: 25, PromptsPerStep: 4, SamplesPerPrompt: 16, ClipLow: 0.2, ClipHigh: 0.2,
		LearningRate: 0.02, MaxGradNorm: 1, Schedule: "constant", Temperature: 1, MaxNew: 1, EvalSamples: 4, EvalEvery: 5, Seed: 1,
	}, algo.Hooks{}))
	fmt.Printf("right before: %.0f %%, at best: %.0f %%\n", 100*result.Before.Accuracy, 100*result.Best.Accuracy)
	// Output:
	// right before: 0 %, at best: 100 %
}
