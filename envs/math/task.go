package math

import (
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/bank"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Options say where the problems are, how they are shown and how answers are verified.
type Options struct {
	Train      Files  // training problems
	Eval       Files  // evaluation problems
	KindColumn string // column with a problem's kind, "" for none
	Examples   Files  // few-shot examples; without a name they are taken from Train. None is a problem of Eval
	FewShot    int    // number of examples, from the start of these files
	// HoldOut is how many of the last problems of Train are held out for evaluation if Eval is empty.
	HoldOut int
	// OnBadRow says whether unusable rows are errors or are dropped. Skipped, if not nil, gets the dropped ones.
	OnBadRow dataset.OnBadRow
	Skipped  func(*dataset.Faults)

	Stepwise     bool   // an action is a line; else the full solution
	EvalStepwise bool   // the same for evaluation
	MaxSteps     int    // maximum lines, if stepwise
	Calculator   bool   // calculator for <<expression=…>>
	Annotate     bool   // GSM8K: use <<expression=result>>
	Plain        bool   // show text instead of messages, for models without a chat template
	Instruction  string // system prompt; "" is the task's default
	Match        answer.Match
	Form         answer.Form
	// Reward scores each turn of the training problems; nil gives 1 for a correct answer and 0 otherwise. If it fails, the
	// turn has no reward.
	Reward envs.Reward
}

// Files are files of problems under one name; the zero value means none.
type Files struct {
	Name   string // in errors
	Paths  []string
	Reader dataset.Reader
}

// Defaults are 8 examples and at most 10 lines, compared by exact text; for MATH, 15 lines, compared by meaning.
func Defaults(name string) Options {
	o := Options{FewShot: 8, Stepwise: true, EvalStepwise: true, MaxSteps: 10, Annotate: true, Match: answer.Exact}
	if name == MATH {
		o.MaxSteps, o.Match = 15, answer.Math
	}
	return o
}

// Task is gsm8k or math.
type Task struct {
	options  Options
	examples []Problem
	bank     *bank.Bank[Problem]
}

// New reads the files and separates the splits. Examples are never problems to solve. A training problem that is also an
// evaluation problem is an error if the files differ; within one file, only the evaluation problem stays.
func New(name string, seed uint64, o Options) (*Task, error) {
	if name != GSM8K && name != MATH {
		return nil, fmt.Errorf("unknown task %q; choose %s or %s", name, GSM8K, MATH)
	}
	switch {
	case o.Train.Name == "" && o.Eval.Name == "":
		return nil, errors.New("no file of problems; set dataset or eval_dataset")
	case o.FewShot < 0 || o.HoldOut < 0:
		return nil, fmt.Errorf("few_shot is %d, hold_out %d; both must be at least 0", o.FewShot, o.HoldOut)
	case (o.Stepwise || o.EvalStepwise) && o.MaxSteps < 1:
		return nil, fmt.Errorf("max_steps is %d; it must be at least 1", o.MaxSteps)
	case o.Calculator && !o.Annotate:
		return nil, errors.New("sym_calc needs <<expression=result>> in the prompt, but annotate=false removes it; drop one of the two")
	}
	train, eval := bank.Source[Problem]{Path: o.Train.Name}, bank.Source[Problem]{Path: o.Eval.Name}
	for _, of := range []struct {
		into *bank.Source[Problem]
		from Files
	}{{&train, o.Train}, {&eval, o.Eval}} {
		if of.from.Name == "" {
			continue
		}
		faults := o.OnBadRow.Faults()
		var err error
		if of.into.All, err = Read(faults, of.from, name, o.KindColumn); err != nil {
			return nil, err
		}
		if o.Skipped != nil {
			o.Skipped(faults)
		}
	}
	t := &Task{options: o}
	err := t.takeExamples(name, train, eval)
	if err == nil {
		t.bank, err = bank.Divide(seed, "problem", train, eval, t.examples, o.HoldOut, func(p Problem) string { return p.Question })
	}
	return t, err
}

// takeExamples reads the few-shot examples.
func (t *Task) takeExamples(name string, train, eval bank.Source[Problem]) error {
	source, n := train, t.options.FewShot
	switch {
	case n == 0:
		return nil
	case t.options.Examples.Name != "":
		source.Path = t.options.Examples.Name
		var err error
		if source.All, err = Read(&dataset.Faults{}, t.options.Examples, name, ""); err != nil {
			return err
		}
	case train.Path == "":
		return envs.OptionErrorf("few_shot", "the %d examples would be problems of %s, which are evaluated; pass --few-shot-dataset FILE with others, or --few-shot 0", n, eval.Path)
	}
	evaluated := map[string]bool{}
	for _, p := range eval.All {
		evaluated[p.Question] = true
	}
	for _, p := range source.All {
		if len(t.examples) < n && !evaluated[p.Question] {
			t.examples = append(t.examples, p)
		}
	}
	if len(t.examples) < n {
		return fmt.Errorf("%s: %d of %d problems are not evaluated, too few for %d few-shot examples; evaluate other problems (--eval-dataset), or pass --few-shot 0", source.Path, len(t.examples), len(source.All), n)
	}
	return nil
}

// FilterPrompts implements envs.PromptFilter.
func (t *Task) FilterPrompts(keep func(envs.Env) (bool, error)) (dropped int, err error) {
	return t.bank.FilterPrompts(func(p Problem) (bool, error) { return keep(t.episode(envs.Train, p)) })
}

// Len returns the number of problems in a split.
func (t *Task) Len(part envs.Part) int { return t.bank.Len(part) }

// Episode returns a problem of a split: Eval in the file's order, Train shuffled anew each epoch from the seed.
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
