package code

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/bank"
	"github.com/rltrain/rltrain/internal/words"
)

// problems are those of a run, in its parts.
type problems interface {
	Len(envs.Part) int
	At(envs.Part, int) (Problem, error)
}

// task is the problems of a run and how answers are judged.
type task struct {
	problems
	options *options
	judge   *Grader
	asText  bool // problems are shown as text
	short   bool // the program's own problems, whose answer is an expression
}

// Task implements envs.EpisodeSource.
func (o *options) Task(s envs.Setup) (envs.Task, error) {
	t := &task{options: o, asText: s.Text}
	ctx := context.Background()
	if o.Dataset == "" && o.EvalDataset == "" {
		if o.Language != "python" {
			return nil, &envs.OptionError{Option: "language", Err: fmt.Errorf("%s needs --dataset: the program's own problems are in python", o.Language)}
		}
		t.short = true
		t.problems = &oneLines{seed: s.Seed, held: o.HeldFamilies, slips: o.SlipShare, parts: map[envs.Part]*sequence{}}
	} else if err := t.read(s); err != nil {
		return nil, err
	}
	var err error
	if t.judge, err = NewGrader(ctx, o.Language, o.Interpreter, seconds(o.Timeout), o.Unsafe); err != nil {
		return nil, err
	}
	if b, ok := t.problems.(*sifted); ok && o.CheckSolutions && !s.EvalOnly {
		if err := t.checkSolutions(ctx, slices.Concat(b.Train, b.Eval)); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// Close ends what runs programs.
func (t *task) Close() error { return t.judge.Close() }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// sifted is a bank of problems.
type sifted struct{ *bank.Bank[Problem] }

// read reads the files.
func (t *task) read(s envs.Setup) error {
	o := t.options
	train, eval := bank.Source[Problem]{Path: o.Dataset}, bank.Source[Problem]{Path: o.EvalDataset}
	if s.EvalOnly && eval.Path == "" {
		train.Path, eval.Path = "", train.Path
	}
	held := s.HeldOut
	for i, file := range []*bank.Source[Problem]{&train, &eval} {
		if file.Path == "" {
			continue
		}
		var err error
		if file.All, err = Read(file.Path, o.Language, o.CodeTask); err != nil {
			return err
		}
		if most := []int{o.MaxTrain, o.MaxTest}[i]; most > 0 && len(file.All) > most+held*(1-i) {
			file.All = file.All[:most+held*(1-i)]
		}
	}
	if n := len(train.All); eval.Path == "" && held >= n {
		held = max(1, n/5) // a small file keeps most of its problems to learn from
	}
	b, err := bank.Divide(s.Seed, "problem", train, eval, nil, held, func(p Problem) string { return p.Text + "\x00" + p.Source })
	t.problems = &sifted{b}
	return err
}

// checkSolutions refuses problems whose own solution fails their tests.
func (t *task) checkSolutions(ctx context.Context, all []Problem) error {
	var bad []string
	for i := range all {
		p := &all[i]
		if p.Solution == "" {
			continue
		}
		v, err := t.judge.Run(ctx, p, p.complete(p.Solution), slices.Concat(p.Tests, p.Hidden))
		if err != nil {
			return err
		}
		if v.Class == Sandbox {
			return fmt.Errorf("%s: running the problem's own solution: %s", p.Place, v.Message)
		}
		if v.Class != Pass {
			bad = append(bad, fmt.Sprintf("%s: problem %s: its own solution does not pass its tests (%s: %s)", p.Place, words.Quote(p.Name), v.Class, v.Message))
		}
	}
	if bad == nil {
		return nil
	}
	more := ""
	if len(bad) > 1 {
		more = fmt.Sprintf("; and so %d others", len(bad)-1)
	}
	return fmt.Errorf("%s%s: mend them, or use --check-solutions=false", bad[0], more)
}

// FilterPrompts implements envs.PromptFilter, where problems are read from files.
func (t *task) FilterPrompts(keep func(envs.Env) (bool, error)) (dropped int, err error) {
	b, ok := t.problems.(*sifted)
	if !ok {
		return 0, nil
	}
	return b.FilterPrompts(func(p Problem) (bool, error) { return keep(t.episode(envs.Train, p)) })
}

// Episode implements envs.Task.
func (t *task) Episode(part envs.Part, index int) (envs.Env, error) {
	p, err := t.At(part, index)
	if err != nil {
		return nil, err
	}
	return t.episode(part, p), nil
}

func (t *task) episode(part envs.Part, p Problem) envs.Env {
	e := &episode{task: t, problem: p, part: part}
	if p.Solution != "" {
		return worked{e}
	}
	return e
}

// worked is an episode whose problem has a solution.
type worked struct{ *episode }

// Solution implements envs.Worked.
func (e worked) Solution() string {
	solution := cmp.Or(e.problem.Imitated, e.problem.Solution)
	if e.short && e.asText {
		return solution
	}
	return e.answer(solution)
}

// episode is one problem.
type episode struct {
	*task
	problem Problem
	part    envs.Part
	turn    int
	done    bool
}

// Reset implements envs.Env.
func (e *episode) Reset(context.Context) (envs.Observation, error) {
	e.turn, e.done = 0, false
	return e.show(&e.problem), nil
}

// tests are those that a turn is judged by: what is learnt from sees the first of them, what is evaluated all, the hidden
// ones too.
func (e *episode) tests() []Test {
	if e.part == envs.Eval {
		return slices.Concat(e.problem.Tests, e.problem.Hidden)
	}
	if most := e.options.MaxTests; most > 0 && len(e.problem.Tests) > most {
		return e.problem.Tests[:most]
	}
	return e.problem.Tests
}

// Step takes a program, or one more try at it.
//
// A program is paid by
//
//	reward_scale · (base_reward_weight · passed/total + perfect_reward_weight · perfect_bonus · [all passed]
//	                + time_bonus · [all passed] · max(0, 1 − CPU seconds / timeout))
//
// Where the sandbox failed the error is envs.ErrUnjudged. A try that fails before the last is answered with what went wrong and
// pays nothing.
func (e *episode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the problem has been solved or given up: Reset starts it over")
	}
	step := envs.Step{Keep: len(a.Text), Reward: math.NaN()}
	if a.Stop == envs.StopCancelled {
		e.done, step.Done = true, true
		return step, nil
	}
	e.turn++
	text := a.Text
	if a.Stop == envs.StopString {
		for _, stop := range e.stops(&e.problem) {
			text = strings.TrimSuffix(text, stop)
		}
	}
	answer, formatted := Extract(text, e.options.Language, e.options.Reasoning)
	program := e.problem.program(answer, fenced(text))
	v, err := e.judge.Run(ctx, &e.problem, program, e.tests())
	if err != nil {
		return envs.Step{}, err
	}
	if v.Class == Sandbox {
		e.done = true
		return envs.Step{}, fmt.Errorf("%w: %s", envs.ErrNotScored, v.Message)
	}
	e.done = v.Class == Pass || e.turn >= e.options.Turns || a.Stop == envs.StopLength && !e.short
	if !e.done {
		step.Reward = 0
		if said := feedback(v, e.short && e.asText); e.asText {
			step.Append = "\n" + said + "\n"
		} else {
			step.Reply = said
		}
		return step, nil
	}
	step.Done = true
	step.Info = &envs.Info{
		Correct: v.Class == Pass, FormatOK: formatted, FoundBy: string(v.Class), Answer: answer, Truth: e.problem.Solution, Kind: e.problem.Kind,
		Tests: &envs.Tests{Class: string(v.Class), Passed: v.Passed(), Total: v.Total, Seconds: v.CPU, Program: program},
	}
	step.Reward = e.options.pay(v)
	return step, nil
}

// program is the whole program of an answer. One between fences may have the beginning itself.
func (p *Problem) program(answer string, fenced bool) string {
	if strings.TrimSpace(answer) == "" {
		return ""
	}
	if fenced && p.Prefix != "" && strings.Contains(answer, "def "+p.Entry) {
		if strings.HasSuffix(p.Prefix, " ") { // of a function that is not begun: the answer has all of it
			return answer
		}
		return p.complete("    pass\n\n" + answer)
	}
	return p.complete(answer)
}

// pay is what a program earns.
func (o *options) pay(v Verdict) float64 {
	total := o.BaseWeight * float64(v.Passed()) / float64(max(1, v.Total))
	if v.Class == Pass {
		total += o.PerfectWeight*o.PerfectBonus + o.TimeBonus*timeShare(v.CPU, o.Timeout)
	}
	return o.Scale * total
}

// timeShare is the share of its processor time that a program left.
func timeShare(used, limit float64) float64 { return math.Max(0, 1-used/limit) }

// feedback is what a model is told after a try that failed. What was expected stays a secret.
func feedback(v Verdict, short bool) string {
	if short {
		return string(v.Class)
	}
	text := fmt.Sprintf("The program does not solve the problem (%s): %d of %d tests pass.", v.Class, v.Passed(), v.Total)
	if v.Message != "" {
		text += " " + words.Quote(v.Message)
	}
	return text + " Write it again, corrected."
}
