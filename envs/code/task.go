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
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/sandbox"
	"github.com/rltrain/rltrain/internal/words"
)

// problems are the problems of a run, by split.
type problems interface {
	Len(envs.Part) int
	At(envs.Part, int) (Problem, error)
}

// task is the problems of a run and their grader.
type task struct {
	problems
	options *options
	grader  *Grader
	asText  bool // for models without a chat template
	short   bool // built-in problems, whose answer is an expression
}

// Task implements envs.EpisodeSource.
func (o *options) Task(s envs.Setup) (envs.Task, error) {
	t := &task{options: o, asText: s.Text}
	ctx := context.Background()
	if o.Dataset == "" && o.EvalDataset == "" {
		if o.Language != "python" {
			return nil, envs.OptionErrorf("language", "%s needs --dataset; the built-in problems are in python", o.Language)
		}
		t.short = true
		t.problems = &oneLines{seed: s.Seed, held: o.HeldFamilies, slips: o.SlipShare, parts: map[envs.Part]*sequence{}}
	} else if err := t.read(s); err != nil {
		return nil, err
	}
	var err error
	if t.grader, err = NewGrader(ctx, o.Language, o.Interpreter, seconds(o.Timeout), o.Unsafe); err != nil {
		return nil, err
	}
	if b, ok := t.problems.(*filtered); ok && o.CheckSolutions {
		if s.Context != nil {
			ctx = s.Context
		}
		if err := o.checkBank(ctx, s, t.grader, b); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// checkBank checks all problems; those that may be dropped are.
func (o *options) checkBank(ctx context.Context, s envs.Setup, grader *Grader, b *filtered) error {
	all := slices.Concat(b.Train, b.Eval)
	if s.EvalOnly {
		all = unsolved(all)
	}
	faults := o.Faults()
	bad, err := o.checkProblems(ctx, grader, all, faults, s.Tell)
	if err != nil {
		return err
	}
	s.TellSkipped(faults)
	for _, part := range []*[]Problem{&b.Train, &b.Eval} {
		had := len(*part)
		*part = slices.DeleteFunc(slices.Clone(*part), func(p Problem) bool { return bad[p.Place] })
		if had > 0 && len(*part) == 0 {
			_, first := faults.Skipped()
			return fmt.Errorf("no problem is left: %w", first)
		}
	}
	return nil
}

// Close stops the grader.
func (t *task) Close() error { return t.grader.Close() }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// filtered is a bank of problems.
type filtered struct{ *bank.Bank[Problem] }

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
		faults := o.Faults()
		var err error
		if file.All, err = Read(faults, file.Path, o.Language, o.CodeTask); err != nil {
			return err
		}
		s.TellSkipped(faults)
		if most := []int{o.MaxTrain, o.MaxTest}[i]; most > 0 && len(file.All) > most+held*(1-i) {
			file.All = file.All[:most+held*(1-i)]
		}
	}
	if n := len(train.All); eval.Path == "" && held >= n {
		held = max(1, n/5) // keep most problems of a small file for training
	}
	b, err := bank.Divide(s.Seed, "problem", train, eval, nil, held, func(p Problem) string { return p.Text + "\x00" + p.Source })
	t.problems = &filtered{b}
	return err
}

// unsolved are the problems without a reference solution. An evaluation checks only their tests, which no solution has
// passed.
func unsolved(all []Problem) []Problem {
	return slices.DeleteFunc(slices.Clone(all), func(p Problem) bool { return p.Solution != "" })
}

// A check of more than quietChecks problems is announced, and shows its progress every checksShown.
const (
	quietChecks = 50
	checksShown = 30 * time.Second
)

// checkProblems adds to faults the problems whose reference solution fails their tests, and those whose tests are at fault, and
// returns their places. tell, unless nil, gets lines of progress.
func (o *options) checkProblems(ctx context.Context, grader *Grader, all []Problem, faults *dataset.Faults, tell func(line string)) (bad map[string]bool, err error) {
	if tell == nil || len(all) <= quietChecks {
		tell = func(string) {}
	}
	tell(fmt.Sprintf("Checking the tests of %d problems with their solutions; --check-solutions=false skips this", len(all)))
	verdicts, shown := make([]Verdict, len(all)), time.Now()
	bad = map[string]bool{}
	err = inOrder(ctx, len(all), func(ctx context.Context, i int) (err error) {
		p := &all[i]
		if program := o.solutionOf(p); program != "" {
			verdicts[i], err = grader.Run(ctx, p, program, slices.Concat(p.Tests, p.Hidden))
		}
		return err
	}, func(i int) error {
		if time.Since(shown) > checksShown {
			shown = time.Now()
			tell(fmt.Sprintf("Checked %d of %d problems", i+1, len(all)))
		}
		p, v, fault := &all[i], verdicts[i], ""
		switch {
		case o.solutionOf(p) == "":
			return nil
		case v.Class == Sandbox:
			return fmt.Errorf("%s: running the reference solution: %s", p.Place, v.Message)
		case v.Fault:
			fault = v.Message
		case v.Class != Pass && p.Solution != "":
			fault = fmt.Sprintf("the reference solution fails its tests (%s: %s)", v.Class, v.Message)
		default:
			return nil
		}
		bad[p.Place] = true
		return faults.Add(fmt.Errorf("%s: problem %s: %s", p.Place, words.Quote(p.Name), fault))
	})
	if err != nil {
		return nil, err
	}
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("%w; fix them, or accept them with --check-solutions=false", err)
	}
	return bad, nil
}

// solutionOf is the program that the tests of a problem are checked with: its solution, else one that does nothing, which
// tells whether the tests themselves run. "" means that there is nothing to check.
func (o *options) solutionOf(p *Problem) string {
	switch {
	case p.Solution != "":
		return p.complete(p.Solution)
	case o.Language != sandbox.Python, len(p.Tests) > 0 && p.Tests[0].Assert == "" && p.Tests[0].Script == "":
		return "" // only tests in Python can be at fault without a program
	}
	return "pass"
}

// FilterPrompts implements envs.PromptFilter for problems from files.
func (t *task) FilterPrompts(keep func(envs.Env) (bool, error)) (dropped int, err error) {
	b, ok := t.problems.(*filtered)
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
		return demonstrated{e}
	}
	return e
}

// demonstrated is an episode whose problem has a solution.
type demonstrated struct{ *episode }

// Solution implements envs.Demonstrator.
func (e demonstrated) Solution() string {
	solution := cmp.Or(e.problem.Demonstration, e.problem.Solution)
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

// tests are the tests of a turn: the first ones for training, all including the hidden ones for evaluation.
func (e *episode) tests() []Test {
	if e.part == envs.Eval {
		return slices.Concat(e.problem.Tests, e.problem.Hidden)
	}
	if most := e.options.MaxTests; most > 0 && len(e.problem.Tests) > most {
		return e.problem.Tests[:most]
	}
	return e.problem.Tests
}

// Step takes a program, or another attempt. The reward is
//
//	reward_scale · (base_reward_weight · passed/total + perfect_reward_weight · perfect_bonus · [all passed]
//	                + time_bonus · [all passed] · max(0, 1 − CPU seconds / timeout))
//
// If the sandbox failed, the error is envs.ErrNotScored. A failed attempt before the last gets the error message as a
// reply, and reward 0.
func (e *episode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the episode has ended; call Reset")
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
	answer, formatted := Extract(text, e.options.Language, e.options.Reasoning, e.problem.names()...)
	program := e.problem.program(answer)
	v, err := e.grader.Run(ctx, &e.problem, program, e.tests())
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
		Tests: &envs.Tests{Class: string(v.Class), Passed: v.Passed(), Total: v.Total, Seconds: v.CPU, Message: v.Message, Program: program},
	}
	step.Reward = e.options.reward(v)
	return step, nil
}

// program builds the full program from an answer, which continues the prefix or repeats it.
func (p *Problem) program(answer string) string {
	if strings.TrimSpace(answer) == "" {
		return ""
	}
	if p.Prefix != "" && defines(answer, p.Entry) && !strings.HasPrefix(answer, " ") && !strings.HasPrefix(answer, "\t") {
		if strings.HasSuffix(p.Prefix, " ") { // the function header is incomplete, so the answer replaces it
			return answer
		}
		future, answer := futures(answer)
		return future + p.complete("    pass\n\n"+answer)
	}
	return p.complete(answer)
}

// futures separates what must come first in a Python program.
func futures(program string) (future, rest string) {
	var lines strings.Builder
	for line := range strings.Lines(program) {
		if strings.HasPrefix(line, "from __future__ import ") && !strings.Contains(line, "(") {
			future += strings.TrimRight(line, "\n") + "\n"
		} else {
			lines.WriteString(line)
		}
	}
	return future, lines.String()
}

// reward is the reward of a verdict.
func (o *options) reward(v Verdict) float64 {
	total := o.BaseWeight * float64(v.Passed()) / float64(max(1, v.Total))
	if v.Class == Pass {
		total += o.PerfectWeight*o.PerfectBonus + o.TimeBonus*timeShare(v.CPU, o.Timeout)
	}
	return o.Scale * total
}

// timeShare is the unused fraction of the time limit.
func timeShare(used, limit float64) float64 { return math.Max(0, 1-used/limit) }

// feedback is the reply to a failed attempt. It never reveals expected results.
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
