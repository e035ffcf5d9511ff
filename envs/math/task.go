package math

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"rltrain/envs"
	"rltrain/envs/answer"
)

func init() {
	for _, name := range []string{GSM8K, MATH} {
		envs.Register(name, func(seed uint64, settings envs.Settings) (envs.Task, error) {
			o := Defaults(name)
			match := string(o.Match)
			if err := settings.Read(map[string]any{
				"dataset": &o.Train, "eval_dataset": &o.Eval, "few_shot_dataset": &o.FewShotFile, "few_shot": &o.FewShot,
				"step_mode": &o.Stepwise, "max_steps": &o.MaxSteps, "sym_calc": &o.Calculator, "annotate": &o.Annotate,
				"answer_match": &match,
			}); err != nil {
				return nil, err
			}
			var err error
			if o.Match, err = answer.ParseMatch(match); err != nil {
				return nil, err
			}
			return New(name, seed, o)
		})
	}
}

// Options say where the problems are and how they are shown and judged.
type Options struct {
	Train       string // file of the problems to learn from, "" for none
	Eval        string // file of the problems to be judged by, "" for none
	FewShotFile string // file of the worked examples; "" takes them from Train, else from Eval
	FewShot     int    // the first so many problems of that file are the examples
	Stepwise    bool   // an action is a line; else all of the solution
	MaxSteps    int    // lines at most, stepwise
	Calculator  bool   // work out <<expression=…>>
	Annotate    bool   // GSM8K: show and ask for <<expression=result>>
	Match       answer.Match
}

// Defaults are 8 examples and up to 10 lines, 15 for MATH, judged by exact text.
func Defaults(name string) Options {
	o := Options{FewShot: 8, Stepwise: true, MaxSteps: 10, Annotate: true, Match: answer.Exact}
	if name == MATH {
		o.MaxSteps = 15
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

// New reads the files. The worked examples are no problems of the part they come from.
func New(name string, seed uint64, o Options) (*Task, error) {
	if name != GSM8K && name != MATH {
		return nil, fmt.Errorf("task %q is not one of %s and %s", name, GSM8K, MATH)
	}
	switch {
	case o.Train == "" && o.Eval == "":
		return nil, errors.New("no file of problems: name one as dataset or eval_dataset")
	case o.FewShot < 0:
		return nil, fmt.Errorf("few_shot is %d: must not be negative", o.FewShot)
	case o.Stepwise && o.MaxSteps < 1:
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
	return t, t.takeExamples(name)
}

func (t *Task) takeExamples(name string) error {
	source, path := &t.train, t.options.Train
	switch {
	case t.options.FewShotFile != "":
		path = t.options.FewShotFile
		problems, err := Read(path, name)
		if err != nil {
			return err
		}
		source = &problems
	case path == "":
		source, path = &t.eval, t.options.Eval
	}
	n := t.options.FewShot
	if n >= len(*source) && (n > len(*source) || t.options.FewShotFile == "") {
		return fmt.Errorf("%s: %d problems are too few for %d worked examples and some to solve", path, len(*source), n)
	}
	t.examples, *source = (*source)[:n:n], (*source)[n:]
	return nil
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
		return t.episode(t.train[t.shuffled(index)]), nil
	}
	if part == envs.Eval && index >= 0 && index < len(t.eval) {
		return t.episode(t.eval[index]), nil
	}
	return nil, fmt.Errorf("there is no episode %d of part %q, which has %d problems", index, part, t.Len(part))
}

func (t *Task) episode(p Problem) *Episode {
	return &Episode{options: t.options, examples: t.examples, problem: p}
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
