package math

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"rltrain/envs"
	"rltrain/envs/answer"
)

// Options say where the problems are and how they are shown and judged.
type Options struct {
	Train       string // file of the problems to learn from, "" for none
	Eval        string // file of the problems to be judged by, "" for none
	FewShotFile string // file of the worked examples; "" takes them from Train, else from Eval
	FewShot     int    // the first so many problems of that file are the examples
	// HoldOut is how many of the last problems of Train are kept to be judged by, where
	// Eval is "".
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
	options     Options
	seed        uint64
	examples    []Problem
	train, eval []Problem

	lock  sync.Mutex
	epoch int
	order []int // of epoch; nil before the first
}

// New reads the files and keeps their parts apart: no worked example is a problem to
// solve, and a problem to learn from that is also one to be judged by is an error where
// the two come from different files; of one file only the latter stays.
func New(name string, seed uint64, o Options) (*Task, error) {
	if name != GSM8K && name != MATH {
		return nil, fmt.Errorf("task %q is not one of %s and %s", name, GSM8K, MATH)
	}
	switch {
	case o.Train == "" && o.Eval == "":
		return nil, errors.New("no file of problems: name one as dataset or eval_dataset")
	case o.FewShot < 0 || o.HoldOut < 0:
		return nil, fmt.Errorf("few_shot is %d, hold_out %d: must not be negative", o.FewShot, o.HoldOut)
	case (o.Stepwise || o.EvalStepwise) && o.MaxSteps < 1:
		return nil, fmt.Errorf("max_steps is %d: at least one line is needed", o.MaxSteps)
	case o.Calculator && !o.Annotate:
		return nil, errors.New("sym_calc works on <<expression=result>>, which annotate=false keeps from the prompt: choose one")
	}
	t := &Task{options: o, seed: seed}
	for _, part := range []struct {
		path string
		into *[]Problem
	}{{o.Train, &t.train}, {o.Eval, &t.eval}} {
		if part.path == "" {
			continue
		}
		var err error
		if *part.into, err = Read(part.path, name); err != nil {
			return nil, err
		}
	}
	if err := t.takeExamples(name); err != nil {
		return nil, err
	}
	return t, t.divide()
}

// takeExamples sets the worked examples apart.
func (t *Task) takeExamples(name string) error {
	source, path := t.train, t.options.Train
	switch {
	case t.options.FewShotFile != "":
		path = t.options.FewShotFile
		var err error
		if source, err = Read(path, name); err != nil {
			return err
		}
	case path == "":
		source, path = t.eval, t.options.Eval
	}
	n := t.options.FewShot
	if n > len(source) {
		return fmt.Errorf("%s: %d problems are too few for %d worked examples", path, len(source), n)
	}
	t.examples = source[:n:n]
	for _, part := range []struct {
		path string
		of   *[]Problem
	}{{t.options.Train, &t.train}, {t.options.Eval, &t.eval}} {
		*part.of = without(*part.of, t.examples)
		if part.path != "" && len(*part.of) == 0 {
			return fmt.Errorf("%s: %d worked examples leave no problem to solve", part.path, n)
		}
	}
	return nil
}

// divide sees to it that no problem is both learnt from and judged by.
func (t *Task) divide() error {
	if t.options.Eval == "" {
		keep := len(t.train) - t.options.HoldOut
		if keep < 1 {
			return fmt.Errorf("%s: %d problems are too few to keep %d to be judged by", t.options.Train, len(t.train), t.options.HoldOut)
		}
		t.eval = t.train[keep:]
		t.train = without(t.train[:keep:keep], t.eval)
		return nil
	}
	judged := asked(t.eval)
	for _, p := range t.train {
		if judged[p.Question] {
			return fmt.Errorf("%s and %s both have the problem %.60q: what is judged by must not be learnt from; use another file for one of them, or leave the second out to hold problems of the first back", t.options.Train, t.options.Eval, p.Question)
		}
	}
	return nil
}

func asked(problems []Problem) map[string]bool {
	questions := make(map[string]bool, len(problems))
	for _, p := range problems {
		questions[p.Question] = true
	}
	return questions
}

// without is the problems whose question none of the others has.
func without(problems, others []Problem) []Problem {
	questions := asked(others)
	return slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return questions[p.Question] })
}

// Sift implements envs.Sifting.
func (t *Task) Sift(keep func(envs.Env) (bool, error)) (dropped int, err error) {
	var kept []Problem
	for _, p := range t.train {
		ok, err := keep(t.episode(envs.Train, p))
		if err != nil {
			return 0, err
		}
		if ok {
			kept = append(kept, p)
		}
	}
	dropped, t.train = len(t.train)-len(kept), kept
	return dropped, nil
}

// Len is the number of problems of a part.
func (t *Task) Len(part envs.Part) int {
	if part == envs.Train {
		return len(t.train)
	}
	return len(t.eval)
}

// Episode returns a problem of a part: of Eval in the order of the file, of Train in an
// order that the seed shuffles anew each time around.
func (t *Task) Episode(part envs.Part, index int) (envs.Env, error) {
	if part == envs.Train && index >= 0 && len(t.train) > 0 {
		return t.episode(part, t.train[t.shuffled(index)]), nil
	}
	if part == envs.Eval && index >= 0 && index < len(t.eval) {
		return t.episode(part, t.eval[index]), nil
	}
	return nil, fmt.Errorf("there is no episode %d of part %q, which has %d problems", index, part, t.Len(part))
}

func (t *Task) episode(part envs.Part, p Problem) *Episode {
	e := &Episode{options: t.options, examples: t.examples, problem: p}
	if part == envs.Eval {
		e.options.Stepwise, e.options.Reward = t.options.EvalStepwise, nil
	}
	return e
}

func (t *Task) shuffled(index int) int {
	t.lock.Lock()
	defer t.lock.Unlock()
	if epoch := index / len(t.train); t.order == nil || epoch != t.epoch {
		var key [32]byte
		binary.LittleEndian.PutUint64(key[0:], t.seed)
		binary.LittleEndian.PutUint64(key[8:], uint64(epoch))
		t.epoch, t.order = epoch, rand.New(rand.NewChaCha8(key)).Perm(len(t.train))
	}
	return t.order[index%len(t.train)]
}
