package math

import (
	"context"
	"errors"
	"math"
	"strings"

	"rltrain/envs"
	"rltrain/envs/answer"
)

// maxCalculations is how many calculations of a line are worked out.
const maxCalculations = 4

// Episode is one problem.
type Episode struct {
	options  Options
	examples []Problem
	problem  Problem

	written      string // what stands so far
	steps        int    // finished turns
	calculations int    // worked out in this line
	done         bool
}

// Problem is what the episode asks.
func (e *Episode) Problem() Problem { return e.problem }

// Solution is the problem's own solution.
func (e *Episode) Solution() string { return shown(e.options, e.problem) }

// Reset shows the problem.
func (e *Episode) Reset(context.Context) (envs.Observation, error) {
	e.written, e.steps, e.calculations, e.done = "", 0, 0, false
	o := envs.Observation{Messages: conversation(e.options, e.examples, e.problem)}
	if e.options.Stepwise {
		o.Stop = append(o.Stop, "\n")
	}
	if e.options.Calculator {
		o.Stop = append(o.Stop, ">>")
	}
	return o, nil
}

// Step takes a line, or all of the solution, or the piece of it up to a calculation.
//
// A calculation is worked out as far as "=": what the model wrote as its result is
// taken back, and the right one follows as given text. One that cannot be worked out,
// and any after the fourth of a line, stands as written.
//
// The episode ends with the line that has "the answer is:" (GSM8K) or a \boxed{} (MATH),
// when the model ends its turn, or after MaxSteps lines. It pays 1 for an answer that is
// right and given in that form, else 0. A cancelled action has no reward.
func (e *Episode) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the problem has been solved or given up: Reset starts it over")
	}
	if a.Stop == envs.StopCancelled {
		e.done = true
		return envs.Step{Keep: len(a.Text), Reward: math.NaN(), Done: true}, nil
	}
	text := a.Text
	if newline := strings.IndexByte(text, '\n'); e.options.Stepwise && newline >= 0 {
		text = text[:newline+1]
	}
	if e.options.Calculator {
		if step, ok := e.calculate(text); ok {
			return step, nil
		}
	}
	step := envs.Step{Keep: len(text)}
	e.note(text)
	if a.Stop == envs.StopString && !(e.options.Stepwise && strings.HasSuffix(text, "\n")) {
		step.Continues = true
		return step, nil
	}
	e.steps++
	e.done = !e.options.Stepwise || a.Stop == envs.StopEnd && len(text) == len(a.Text) || e.steps >= e.options.MaxSteps || e.answered()
	if step.Done = e.done; !e.done {
		return step, nil
	}
	step.Info = e.problem.Judge(e.written, e.options.Match)
	if step.Info.Correct && step.Info.Formatted {
		step.Reward = 1
	}
	return step, nil
}

// note adds text that stands.
func (e *Episode) note(text string) {
	e.written += text
	if strings.Contains(text, "\n") {
		e.calculations = 0
	}
}

// calculate works the first calculation of text out.
func (e *Episode) calculate(text string) (step envs.Step, ok bool) {
	end := strings.Index(text, ">>")
	if end < 0 {
		return envs.Step{}, false
	}
	start := strings.LastIndex(text[:end], "<<")
	if start < 0 || strings.Contains(text[start:end], "\n") {
		return envs.Step{}, false
	}
	if strings.Contains(text[:start], "\n") {
		e.calculations = 0
	}
	if e.calculations >= maxCalculations {
		return envs.Step{}, false
	}
	expression, _, equals := strings.Cut(text[start+2:end], "=")
	value, err := Evaluate(expression)
	if err != nil {
		return envs.Step{}, false
	}
	result := Format(value)
	step = envs.Step{Keep: start + 2 + len(expression), Append: result + ">>" + result, Continues: true}
	if equals {
		step.Keep++
	} else {
		step.Append = "=" + step.Append
	}
	e.written += text[:step.Keep] + step.Append
	e.calculations++
	return step, true
}

func (e *Episode) answered() bool {
	if e.problem.Task == MATH {
		_, boxed := answer.Boxed(e.written)
		return boxed
	}
	return strings.Contains(strings.ToLower(e.written), strings.ToLower(announcement))
}
