package code

import (
	"context"
	_ "embed"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/bank"
	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed code.yaml
var recipe string

//go:embed dataset.yaml
var dataRecipe string

//go:embed model.yaml
var modelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "code", Help: "write programs that pass tests, run in a sandbox", Recipe: recipe, DataRecipe: dataRecipe, ModelRecipe: modelRecipe,
		Options: func() any { return &options{} }, Demonstrations: true, Forms: true, Rewards: rewards,
	})
}

// options are the options of the task.
type options struct {
	Dataset string `option:"dataset" arg:"FILE|DIR" common:"true" help:"problems: HumanEval, MBPP, a file with prompt and tests, or a folder with one folder per problem (default: built-in one-line problems)"`
	dataset.OnBadRow
	EvalDataset    string  `option:"eval_dataset" arg:"FILE|DIR" help:"evaluation problems (default: the last eval_samples problems of --dataset)"`
	Language       string  `option:"language" default:"python" allowed:"python,node,q,pepper" common:"true" help:"language of the programs"`
	Interpreter    string  `option:"interpreter" arg:"FILE" help:"interpreter of the language (default: found on this machine)"`
	CodeTask       string  `option:"code_task" default:"description_to_q" allowed:"description_to_q,python_to_q,q_to_python" needs:"dataset" help:"task for a folder of problems"`
	SystemPrompt   string  `option:"system_prompt" arg:"FILE" help:"text file with the system prompt"`
	Reasoning      bool    `option:"use_reasoning_format" help:"ask for reasoning in <reasoning> and the program in <answer>"`
	Turns          int     `option:"max_turns" default:"1" range:"[1,64]" help:"attempts per problem; after a failed attempt the model sees the error"`
	Timeout        float64 `option:"test_timeout" default:"5" range:"[1,3600]" help:"processor time limit in seconds, for all tests if they run in one process, else per test"`
	MaxTests       int     `option:"max_tests_per_problem" default:"5" range:"[0,)" help:"use the first N tests of a problem for rewards; evaluation uses all (0 = all)"`
	MaxTrain       int     `option:"max_train_problems" range:"[0,)" help:"maximum number of training problems (0 = all)"`
	MaxTest        int     `option:"max_test_problems" range:"[0,)" help:"maximum number of problems from --eval-dataset (0 = all)"`
	CheckSolutions bool    `option:"check_solutions" default:"true" help:"run the reference solutions first and refuse problems whose solution fails its tests"`
	BaseWeight     float64 `option:"base_reward_weight" default:"1" range:"[0,1000]" help:"reward for the fraction of passed tests"`
	PerfectWeight  float64 `option:"perfect_reward_weight" default:"1" range:"[0,1000]" help:"weight of perfect_bonus"`
	PerfectBonus   float64 `option:"perfect_bonus" default:"1" range:"[0,1000]" help:"extra reward if all tests pass, times perfect_reward_weight"`
	TimeBonus      float64 `option:"time_bonus" range:"[0,1000]" help:"extra reward if all tests pass, times the unused fraction of test_timeout; such runs are not reproducible byte for byte"`
	Scale          float64 `option:"reward_scale" default:"1" range:"(0,1000]" help:"factor for the total reward"`
	HeldFamilies   int     `option:"held_out_families" range:"[0,30]" needs:"!dataset" help:"number of built-in problem families used only for evaluation"`
	SlipShare      float64 `option:"slip_share" range:"[0,1)" needs:"!dataset" help:"fraction of built-in demonstrations with a plausible mistake, for experiments on what RL adds to SFT"`
	Unsafe         bool    `option:"unsafe_exec" help:"if no sandbox works, run programs with resource limits only; they can read and change everything that you can"`

	instruction string
}

// Check reports conflicting options.
func (o *options) Check() error {
	if o.BaseWeight == 0 && o.PerfectWeight*o.PerfectBonus == 0 {
		return envs.OptionErrorf("base_reward_weight", "is 0 and so is the reward for passing all tests; raise one")
	}
	if o.SystemPrompt != "" {
		var err error
		o.instruction, err = bank.Instruction(o.SystemPrompt)
		return err
	}
	return nil
}

// Actions is the maximum number of attempts per episode.
func (o *options) Actions() int { return o.Turns }

// reward defines a reward that reads the test result or the program.
func reward(name, help string, value func(o *options, t *envs.Tests) float64) envs.NamedReward {
	return envs.NamedReward{Name: name, Help: help, New: func(o any, _ envs.Scorer) envs.Reward {
		return func(_ context.Context, c envs.Completion) (float64, error) {
			switch {
			case c.Info != nil && c.Info.Tests != nil:
				return value(o.(*options), c.Info.Tests), nil
			case math.IsNaN(c.Reward):
				return 0, fmt.Errorf("the program was not run")
			}
			return 0, nil // not the last attempt
		}
	}}
}

func whether(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}

// rewards are the task's rewards.
var rewards = []envs.NamedReward{
	reward("tests", "the default: fraction of passed tests, plus a bonus if all pass", func(o *options, t *envs.Tests) float64 {
		v := Verdict{Class: Class(t.Class), Total: t.Total, CPU: t.Seconds}
		for i := range t.Passed {
			v.Tests = append(v.Tests, i >= 0)
		}
		return o.reward(v)
	}),
	reward("partial", "fraction of passed tests", func(_ *options, t *envs.Tests) float64 { return float64(t.Passed) / float64(max(1, t.Total)) }),
	reward("perfect", "1 if all tests pass", func(_ *options, t *envs.Tests) float64 { return whether(t.Class == string(Pass)) }),
	reward("time", "if all tests pass, the unused fraction of test_timeout", func(o *options, t *envs.Tests) float64 {
		return whether(t.Class == string(Pass)) * timeShare(t.Seconds, o.Timeout)
	}),
	reward("style", "fraction of lines without a style fault", func(_ *options, t *envs.Tests) float64 { return Style(t.Program) }),
	reward("documentation", "score for docstrings and comments", func(_ *options, t *envs.Tests) float64 { return Documentation(t.Program) }),
	reward("complexity", "1 for up to ten branches per function, less for more", func(_ *options, t *envs.Tests) float64 { return Complexity(t.Program) }),
	reward("quality", "mean of style, documentation and complexity", func(_ *options, t *envs.Tests) float64 {
		return (Style(t.Program) + Documentation(t.Program) + Complexity(t.Program)) / 3
	}),
}
