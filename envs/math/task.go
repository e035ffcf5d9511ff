package math

import (
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/bank"
)

// Options say where the problems are and how they are shown and judged.
type Options struct {
	Train       Files  // the problems to learn from
	Eval        Files  // the problems to be judged by
	KindColumn  string // column of these files with the kind of a problem, "" for none
	FewShotFile string // file of the worked examples; "" takes them from Train, else from Eval
	FewShot     int    // the first so many problems of that file are the examples
	// HoldOut is how many of the last problems of Train are kept to be judged by, where
	// Eval is none.
	HoldOut int

	Stepwise     bool   // an action is a line; else all of the solution
	EvalStepwise bool   // the same for the problems to be judged by
	MaxSteps     int    // lines at most, stepwise
	Calculator   bool   // work out <<expression=…>>
	Annotate     bool   // GSM8K: show and ask for <<expression=result>>
	Plain        bool   // show text, for models without a chat template, instead of messages
	Instruction  string // what the model is told first; "" is the task's own
	Match        answer.Match
	// Reward pays each turn of the problems to learn from; nil pays 1 for the right answer
	// and 0 for all else. Where it fails the turn has no reward.
	Reward envs.Reward
}

// Files are files of problems under one name; none has no name.
type Files struct {
	Name  string // in errors
	Paths []string
}

// Defaults are 8 examples and up to 10 lines, judged by exact text; 15 lines for MATH,
// judged by meaning.
func Defaults(name string) Options {
	o := Options{FewShot: 8, Stepwise: true, EvalStepwise: true, MaxSteps: 10, Annotate: true, Match: answer.Exact}
	if name == MATH {
		o.MaxSteps, o.Match = 15, answer.Math
	}
	return o
}

// Task is one of the two tasks.
type Task struct {
	options  Options
	examples []Problem
	bank     *bank.Bank[Problem]
}

// New reads the files and keeps their parts apart: no worked example is a problem to
// solve, and a problem to learn from that is also one to be judged by is an error where
// the two come from different files; of one file only the latter stays.
func New(name string, seed uint64, o Options) (*Task, error) {
	if name != GSM8K && name != MATH {
		return nil, fmt.Errorf("task %q is not one of %s and %s", name, GSM8K, MATH)
	}
	switch {
	case o.Train.Name == "" && o.Eval.Name == "":
		return nil, errors.New("no file of problems: name one as dataset or eval_dataset")
	case o.FewShot < 0 || o.HoldOut < 0:
		return nil, fmt.Errorf("few_shot is %d, hold_out %d: must not be negative", o.FewShot, o.HoldOut)
	case (o.Stepwise || o.EvalStepwise) && o.MaxSteps < 1:
		return nil, fmt.Errorf("max_steps is %d: at least one line is needed", o.MaxSteps)
	case o.Calculator && !o.Annotate:
		return nil, errors.New("sym_calc works on <<expression=result>>, which annotate=false keeps from the prompt: choose one")
	}
	train, eval := bank.Source[Problem]{Path: o.Train.Name}, bank.Source[Problem]{Path: o.Eval.Name}
	for _, of := range []struct {
		into *bank.Source[Problem]
		from Files
	}{{&train, o.Train}, {&eval, o.Eval}} {
		if of.from.Name == "" {
			continue
		}
		var err error
		if of.into.All, err = Read(of.from, name, o.KindColumn); err != nil {
			return nil, err
		}
	}
	t := &Task{options: o}
	err := t.takeExamples(name, train, eval)
	if err == nil {
		t.bank, err = bank.Divide(seed, "problem", train, eval, t.examples, o.HoldOut, func(p Problem) string { return p.Question })
	}
	return t, err
}

// takeExamples chooses the worked examples.
func (t *Task) takeExamples(name string, train, eval bank.Source[Problem]) error {
	source := train
	switch {
	case t.options.FewShotFile != "":
		source.Path = t.options.FewShotFile
		var err error
		if source.All, err = Read(Files{source.Path, []string{source.Path}}, name, ""); err != nil {
			return err
		}
	case train.Path == "":
		source = eval
	}
	n := t.options.FewShot
	if n > len(source.All) {
		return fmt.Errorf("%s: %d problems are too few for %d worked examples", source.Path, len(source.All), n)
	}
	t.examples = source.All[:n:n]
	return nil
}

// FilterPrompts implements envs.PromptFilter.
func (t *Task) FilterPrompts(keep func(envs.Env) (bool, error)) (dropped int, err error) {
	return t.bank.FilterPrompts(func(p Problem) (bool, error) { return keep(t.episode(envs.Train, p)) })
}

// Len is the number of problems of a part.
func (t *Task) Len(part envs.Part) int { return t.bank.Len(part) }

// Episode returns a problem of a part: of Eval in the order of the file, of Train in an
// order that the seed shuffles anew each time around.
func (t *Task) Episode(part envs.Part, index int) (envs.Env, error) {
	p, err := t.bank.At(part, index)
	if err != nil {
		return nil, err
	}
	return t.episode(part, p), nil
}

func (t *Task) episode(part envs.Part, p Problem) *Episode {
	e := &Episode{options: t.options, examples: t.examples, problem: p}
	if part == envs.Eval {
		e.options.Stepwise, e.options.Reward = t.options.EvalStepwise, nil
	}
	return e
}
