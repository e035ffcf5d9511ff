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

// maxCalculations is how many calculations of a line are worked out.
const maxCalculations = 4

// Episode is one problem.
type Episode struct {
	options  Options
	examples []Problem
	problem  Problem

	written      string // what stands so far
	turn         int    // where in it the turn under way began
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

// Step takes a line, or all of the solution, or the piece of it up to a calculation.
//
// A calculation is worked out as far as "=": what the model wrote as its result is
// taken back, and the right one follows as given text. One that cannot be worked out,
// and any after the fourth of a line, stands as written.
//
// The episode ends with the line that has "the answer is:" (GSM8K) or a \boxed{} (MATH),
// when the model ends its turn or begins another problem, or after MaxSteps lines. It
// pays 1 for an answer that is right and given in that form, else 0, or what
// Options.Reward makes of the turn. A cancelled action has no reward.
func (e *Episode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
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
	}
	step.Reward = e.pay(ctx, step.Info, a.Stop)
	e.turn = len(e.written)
	return step, nil
}

// pay is the reward of the turn that ends here.
func (e *Episode) pay(ctx context.Context, info *envs.Info, stop envs.StopReason) float64 {
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

// note adds text that stands.
func (e *Episode) note(text string) {
	e.written += text
	if strings.Contains(text, "\n") {
		e.calculations = 0
	}
}

// calculate works the first calculation of text out.
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
