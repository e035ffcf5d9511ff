package code

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/words"
)

// completion is a row of a completions file.
type completion struct {
	problem *Problem
	text    string
}

// Programs implements envs.ProgramSource. Rows have task_id and a completion, as in HumanEval's evaluation files.
func (o *options) Programs(ctx context.Context, s envs.Setup, path, field string, each func(envs.Program)) (problems int, err error) {
	if o.Dataset == "" {
		return 0, envs.OptionErrorf("dataset", "is needed: it has the problems of the completions")
	}
	faults := o.Faults()
	all, err := Read(faults, o.Dataset, o.Language, o.CodeTask)
	if err != nil {
		return 0, err
	}
	rows, err := readCompletions(faults, path, field, all)
	if err != nil {
		return 0, err
	}
	grader, err := NewGrader(ctx, o.Language, o.Interpreter, seconds(o.Timeout), o.Unsafe)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, grader.Close()) }()
	if o.CheckSolutions {
		bad, err := o.checkProblems(ctx, grader, unsolved(all), faults, s.Tell)
		if err != nil {
			return 0, err
		}
		rows = slices.DeleteFunc(rows, func(c completion) bool { return bad[c.problem.Place] })
	}
	s.TellSkipped(faults)
	done := make([]envs.Program, len(rows))
	err = inOrder(ctx, len(rows), func(ctx context.Context, i int) (err error) {
		done[i], err = o.graded(ctx, grader, rows[i])
		return err
	}, func(i int) error {
		done[i].Row, done[i].Rows = i+1, len(rows)
		each(done[i])
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(all), nil
}

// inOrder does work for each i below n on all processors, and calls each in order. The first error ends it.
func inOrder(ctx context.Context, n int, work func(ctx context.Context, i int) error, each func(i int) error) error {
	finished := make([]chan error, n)
	for i := range finished {
		finished[i] = make(chan error, 1)
	}
	next := make(chan int)
	var workers sync.WaitGroup
	defer workers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				finished[i] <- work(ctx, i)
			}
		})
	}
	workers.Go(func() {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	})
	for i := range n {
		select {
		case err := <-finished[i]:
			if err == nil {
				err = each(i)
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// graded runs one completion.
func (o *options) graded(ctx context.Context, grader *Grader, row completion) (envs.Program, error) {
	p := row.problem
	answer, formatted := Extract(row.text, o.Language, o.Reasoning, p.names()...)
	program := p.program(answer)
	v, err := grader.Run(ctx, p, program, slices.Concat(p.Tests, p.Hidden))
	one := envs.Program{Problem: p.Name, Failure: v.Message, Prompt: p.Text, Completion: row.text}
	if err == nil && v.Class != Sandbox {
		one.Info = &envs.Info{
			Correct: v.Class == Pass, FormatOK: formatted, FoundBy: string(v.Class), Answer: answer, Kind: p.Kind,
			Tests: &envs.Tests{Class: string(v.Class), Passed: v.Passed(), Total: v.Total, Seconds: v.CPU, Message: v.Message, Program: program},
		}
	}
	return one, err
}

// readCompletions reads rows, each for one of the problems. Rows that cannot be used are added to faults.
func readCompletions(faults *dataset.Faults, path, field string, problems []Problem) ([]completion, error) {
	byName := map[string]*Problem{}
	var names []string
	for i := range problems {
		byName[problems[i].Name] = &problems[i]
		names = append(names, problems[i].Name)
	}
	var rows []completion
	for r, err := range dataset.Records(path) {
		if err != nil {
			return nil, err
		}
		f := fields{r.Fields}
		name := f.name()
		p := byName[name]
		value, _ := f.Get(field)
		text, ok := value.(string)
		var fault error
		switch {
		case name == "":
			fault = fmt.Errorf("%s: field \"task_id\" is missing", r.Place())
		case p == nil:
			fault = fmt.Errorf("%s: task_id %s is not in the data set%s", r.Place(), words.Quote(name), nearest.Hint(name, names, words.Quote))
		case !ok:
			fault = fmt.Errorf("%s: field %q is missing or not text", r.Place(), field)
		default:
			rows = append(rows, completion{p, text})
			continue
		}
		if err := faults.Add(fault); err != nil {
			return nil, err
		}
	}
	if err := faults.Err(); err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s: no rows", path)
	}
	return rows, nil
}
