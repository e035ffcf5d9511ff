package math

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
)

// calculated ends a calculation.
const calculated = ">>"

// maxCalculations is the number of calculations per line that the calculator handles.
const maxCalculations = 4

// Episode is one problem.
type Episode struct {
	options  Options
	examples []Problem
	problem  Problem

	written      string // the solution so far
	turn         int    // offset where the current turn begins
	steps        int    // finished turns
	calculations int    // calculator results in this line
	done         bool
}

// Problem returns the problem.
func (e *Episode) Problem() Problem { return e.problem }

// Solution is the problem's reference solution.
func (e *Episode) Solution() string { return shown(e.options, e.problem) }

// Reset shows the problem.
func (e *Episode) Reset(context.Context) (envs.Observation, error) {
	e.written, e.turn, e.steps, e.calculations, e.done = "", 0, 0, 0, false
	var o envs.Observation
	if e.options.Plain {
		o.Text = plain(e.options, e.examples, e.problem)
	} else {
		o.Messages = conversation(e.options, e.examples, e.problem)
	}
	switch {
	case e.options.Stepwise:
		o.Stop = append(o.Stop, "\n")
	case e.options.Plain:
		o.Stop = append(o.Stop, questionMark)
	}
	if e.options.Calculator {
		o.Stop = append(o.Stop, calculated)
	}
	return o, nil
}

// Step takes a line, or the full solution, or the part up to a calculation.
//
// The calculator keeps a calculation up to "=", drops the model's result and appends the correct one as given text.
// Calculations that it cannot evaluate, and those after the fourth of a line, stay unchanged.
//
// The episode ends with a line that has "the answer is:" (GSM8K) or \boxed{} (MATH), when the model ends its turn or
// starts another problem, or after MaxSteps lines. The reward is 1 for a correct answer in that format, else 0, or the
// value of Options.Reward. A cancelled action has no reward.
func (e *Episode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the episode has ended; call Reset")
	}
	if a.Stop == envs.StopCancelled {
		e.done = true
		return envs.Step{Keep: len(a.Text), Reward: math.NaN(), Done: true}, nil
	}
	text := a.Text
	if newline := strings.IndexByte(text, '\n'); e.options.Stepwise && newline >= 0 {
		text = text[:newline+1]
	} else if a.Stop == envs.StopString {
		text = strings.TrimSuffix(text, questionMark)
	}
	if e.options.Calculator {
		if step, ok := e.calculate(text); ok {
			return step, nil
		}
	}
	step := envs.Step{Keep: len(text)}
	e.note(text)
	if a.Stop == envs.StopString && strings.HasSuffix(text, calculated) {
		step.Continues = true
		return step, nil
	}
	e.steps++
	e.done = !e.options.Stepwise || a.Stop == envs.StopEnd && len(text) == len(a.Text) || e.steps >= e.options.MaxSteps || e.answered()
	if step.Done = e.done; e.done {
		step.Info = e.problem.Verify(e.written, e.options.Match)
		step.Info.CheckForm(e.options.Form)
	}
	step.Reward = e.reward(ctx, step.Info, a.Stop)
	e.turn = len(e.written)
	return step, nil
}

// reward is the reward of the turn that ends here.
func (e *Episode) reward(ctx context.Context, info *envs.Info, stop envs.StopReason) float64 {
	if e.options.Reward == nil {
		if info != nil && info.Correct && info.FormatOK {
			return 1
		}
		return 0
	}
	reward, err := e.options.Reward(ctx, envs.Completion{
		Observation: envs.Observation{Messages: []envs.Message{{Role: envs.RoleUser, Content: e.problem.Question}}},
		Text:        e.written, Info: info, Continues: !e.done, Action: envs.Action{Text: e.written[e.turn:], Stop: stop},
	})
	if err != nil {
		return math.NaN()
	}
	return reward
}

// note appends text to the solution.
func (e *Episode) note(text string) {
	e.written += text
	if strings.Contains(text, "\n") {
		e.calculations = 0
	}
}

// calculate evaluates the first calculation in text.
func (e *Episode) calculate(text string) (step envs.Step, ok bool) {
	end := strings.Index(text, calculated)
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
	step = envs.Step{Keep: start + 2 + len(expression), Append: result + calculated + result, Continues: true}
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
