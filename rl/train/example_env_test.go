package train_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// vowelThenDigit is a task of two turns that asks for a vowel, then for a digit, and rewards each. It has no options,
// so its options struct is the task.
type vowelThenDigit struct{}

func (t *vowelThenDigit) Task(envs.Setup) (envs.Task, error) { return t, nil }

func (*vowelThenDigit) Len(envs.Part) int { return 0 }

func (*vowelThenDigit) Episode(envs.Part, int) (envs.Env, error) { return &interview{}, nil }

func init() {
	envs.Register(envs.Definition{
		Name: "vowel_then_digit", Help: "write a vowel, then a digit", Options: func() any { return &vowelThenDigit{} },
	})
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
		step.Info = &envs.Info{Correct: v.right == 2, FormatOK: true, FoundBy: "turns", Answer: a.Text}
	}
	return step, nil
}

// A custom task can have any number of turns per episode. Its text enters the trajectory as given tokens; only the
// policy's tokens are trained.
func ExampleTrain_turns() {
	task := get(envs.New("vowel_then_digit", envs.Setup{Seed: 1}, nil))
	trainTiny(task, &algo.GRPO{Clip: algo.Clip{Low: 0.2, High: 0.2}}, 0.02, train.Updates{})
	// Output:
	// right before: 0 %, at best: 100 %
}

// trainTiny creates a two-layer language model and trains it on a task with single-character actions.
func trainTiny(task envs.Task, a algo.Algorithm, rate float64, updates train.Updates) {
	dir := get(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	model := filepath.Join(dir, "tiny")
	check(policy.TinyModel(model, 2, 32, 1)) // or any folder of a causal language model
	p := get(policy.NewCausalLM(policy.Config{Dir: model, Full: true}))
	defer p.Close()
	const steps, prompts, samples = 25, 4, 16
	sampler := get(p.NewSampler(prompts * samples))
	defer sampler.Close()

	source := get(rollout.NewTokens(sampler, task, rollout.TokensConfig{
		Options: rollout.Options{PromptsPerStep: prompts, SamplesPerPrompt: samples, Sampling: rollout.Sampling{Temperature: 1}},
		Steps:   steps, MaxNew: 1, Seed: 1,
	}))
	result := get(train.Run(context.Background(), p, source, a, train.Config{
		Steps: steps, Samples: samples, Updates: updates, Seed: 1,
		Optimisation: train.Optimisation{LearningRate: rate, Schedule: "constant", MaxGradNorm: 1},
		Evaluate:     evaluate.Answers(sampler, task, 4, 5, rollout.Config{MaxNew: 1}.Greedy()),
	}, run.Hooks{}))
	var before, best rl.AnswerScores
	check(json.Unmarshal(result.Before, &before))
	check(json.Unmarshal(result.Best, &best))
	fmt.Printf("right before: %.0f %%, at best: %.0f %%\n", 100*before.Accuracy, 100*best.Accuracy)
}
