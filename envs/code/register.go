package code

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/bank"
)

//go:embed code.yaml
var recipe string

//go:embed dataset.yaml
var dataRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "code", Help: "write programs that pass tests, which a sandbox runs", Recipe: recipe, DataRecipe: dataRecipe,
		Options: func() any { return &options{} }, Demonstrations: true, Forms: true, Rewards: rewards,
	})
}

// options are those of the task.
type options struct {
	Dataset        string  `option:"dataset" arg:"FILE|DIR" common:"true" help:"problems: HumanEval, MBPP, a file with prompt and tests, or a folder with a folder for each problem; without it one-line problems that the program makes up"`
	EvalDataset    string  `option:"eval_dataset" arg:"FILE|DIR" help:"problems to be judged by; without it the last eval_samples problems of --dataset are held back"`
	Language       string  `option:"language" default:"python" allowed:"python,node,q,pepper" common:"true" help:"of the programs"`
	Interpreter    string  `option:"interpreter" arg:"FILE" help:"the language's interpreter; without it one is looked for"`
	CodeTask       string  `option:"code_task" default:"description_to_q" allowed:"description_to_q,python_to_q,q_to_python" needs:"dataset" help:"what is asked of the problems of a folder"`
	SystemPrompt   string  `option:"system_prompt" arg:"FILE" help:"text file with what the model is told first"`
	Reasoning      bool    `option:"use_reasoning_format" help:"have the model reason in <reasoning> and answer in <answer>"`
	Turns          int     `option:"max_turns" default:"1" range:"[1,64]" help:"tries at a problem; after one that fails the model is told what went wrong"`
	Timeout        float64 `option:"test_timeout" default:"5" range:"[1,3600]" help:"seconds of processor time that a program has for all its tests in one process, else for each test"`
	MaxTests       int     `option:"max_tests_per_problem" default:"5" range:"[0,)" help:"tests that rewards see, the first of a problem; evaluation has all; 0 = all"`
	MaxTrain       int     `option:"max_train_problems" range:"[0,)" help:"problems to learn from at most; 0 = all"`
	MaxTest        int     `option:"max_test_problems" range:"[0,)" help:"problems of --eval-dataset at most; 0 = all"`
	CheckSolutions bool    `option:"check_solutions" default:"true" help:"run the problems' own solutions first, and refuse problems whose tests they fail"`
	BaseWeight     float64 `option:"base_reward_weight" default:"1" range:"[0,1000]" help:"paid for the share of tests that pass"`
	PerfectWeight  float64 `option:"perfect_reward_weight" default:"1" range:"[0,1000]" help:"times perfect_bonus, paid where all pass"`
	PerfectBonus   float64 `option:"perfect_bonus" default:"1" range:"[0,1000]" help:"see perfect_reward_weight"`
	TimeBonus      float64 `option:"time_bonus" range:"[0,1000]" help:"paid where all pass, times the share of test_timeout that the program left; a run with it is not repeated to the byte"`
	Scale          float64 `option:"reward_scale" default:"1" range:"(0,1000]" help:"times all of these"`
	HeldFamilies   int     `option:"held_out_families" range:"[0,30]" needs:"!dataset" help:"kinds of the program's own problems that are for evaluation alone"`
	SlipShare      float64 `option:"slip_share" range:"[0,1)" needs:"!dataset" help:"share of the program's own worked solutions that are wrong in a likely way, for experiments: tests alone tell them apart"`
	Unsafe         bool    `option:"unsafe_exec" help:"where no sandbox works, run programs with limits alone: they can read and change all that you can"`

	instruction string
}

// Check refuses what goes against each other.
func (o *options) Check() error {
	if o.BaseWeight == 0 && o.PerfectWeight*o.PerfectBonus == 0 {
		return &envs.OptionError{Option: "base_reward_weight", Err: errors.New("0 with a perfect reward of 0 pays nothing; raise one")}
	}
	if o.SystemPrompt != "" {
		var err error
		o.instruction, err = bank.Instruction(o.SystemPrompt)
		return err
	}
	return nil
}

// Actions is how many tries an episode has at most.
func (o *options) Actions() int { return o.Turns }

// reward is one that reads how a program did, or the program itself.
func reward(name, help string, value func(o *options, t *envs.Tests) float64) envs.NamedReward {
	return envs.NamedReward{Name: name, Help: help, New: func(o any, _ envs.Scorer) envs.Reward {
		return func(_ context.Context, c envs.Completion) (float64, error) {
			switch {
			case c.Info != nil && c.Info.Tests != nil:
				return value(o.(*options), c.Info.Tests), nil
			case math.IsNaN(c.Reward):
				return 0, fmt.Errorf("the program was not run")
			}
			return 0, nil // a try that is not the last
		}
	}}
}

func whether(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}

// rewards are the task's own.
var rewards = []envs.NamedReward{
	reward("tests", "what the task pays: the share of tests that pass, and a bonus for all", func(o *options, t *envs.Tests) float64 {
		v := Verdict{Class: Class(t.Class), Total: t.Total, CPU: t.Seconds}
		for i := range t.Passed {
			v.Tests = append(v.Tests, i >= 0)
		}
		return o.pay(v)
	}),
	reward("partial", "the share of tests that pass", func(_ *options, t *envs.Tests) float64 { return float64(t.Passed) / float64(max(1, t.Total)) }),
	reward("perfect", "1 where all tests pass", func(_ *options, t *envs.Tests) float64 { return whether(t.Class == string(Pass)) }),
	reward("time", "where all tests pass, the share of test_timeout that the program left", func(o *options, t *envs.Tests) float64 {
		return whether(t.Class == string(Pass)) * timeShare(t.Seconds, o.Timeout)
	}),
	reward("style", "the share of lines without a fault of style", func(_ *options, t *envs.Tests) float64 { return Style(t.Program) }),
	reward("documentation", "docstrings and comments", func(_ *options, t *envs.Tests) float64 { return Documentation(t.Program) }),
	reward("complexity", "1 for functions of up to ten branches, less for more", func(_ *options, t *envs.Tests) float64 { return Complexity(t.Program) }),
	reward("quality", "the mean of style, documentation and complexity", func(_ *options, t *envs.Tests) float64 {
		return (Style(t.Program) + Documentation(t.Program) + Complexity(t.Program)) / 3
	}),
}
