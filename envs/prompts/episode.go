package prompts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/internal/words"
)

// episode is a prompt and the conversation about it.
type episode struct {
	*task
	prompt prompt
	said   []envs.Message // for the turn program
	turn   int
	done   bool
	used   *tools.Turns // nil without tools
}

// demonstrated is an episode whose row has a solution.
type demonstrated struct{ *episode }

// Solution implements envs.Demonstrator.
func (e demonstrated) Solution() string { return e.prompt.solution }

// Reset implements envs.Env.
func (e *episode) Reset(context.Context) (envs.Observation, error) {
	e.said, e.turn, e.done = slices.Clone(e.prompt.said()), 0, false
	if e.used != nil && e.used.Used().Calls+e.used.Used().Malformed > 0 {
		_ = e.used.Close()
		e.used = e.turns()
	}
	return e.shown(e.prompt), nil
}

// Close ends the programs of the episode's tools.
func (e *episode) Close() error {
	if e.used == nil {
		return nil
	}
	return e.used.Close()
}

// Step takes a turn. A turn with tool calls goes on after their results. The reward is 1 if the last turn has the correct answer, else 0; earlier turns get 0. Without answers
// in the file, after cancellation, or without a reply in time, there is no reward.
func (e *episode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the episode has ended; call Reset")
	}
	step := envs.Step{Keep: len(a.Text)}
	if a.Stop == envs.StopCancelled {
		e.done, step.Done, step.Reward = true, true, math.NaN()
		return step, nil
	}
	if a.Stop == envs.StopString {
		for _, stop := range e.stop {
			a.Text = strings.TrimSuffix(a.Text, stop)
		}
	}
	text := a.Text
	e.turn++
	last := e.turn == e.options.MaxTurns || a.Stop == envs.StopLength
	if e.used != nil && !last {
		before := e.used.Used().Malformed
		said, results, err := e.used.Answer(ctx, a)
		if err != nil {
			return envs.Step{}, err
		}
		if results != nil {
			e.said = append(append(e.said, said), results...)
			step.Results, step.Continues = results, true
			step.Masked = e.options.MaskMalformed && e.used.Used().Malformed > before
			return e.tell(step), nil
		}
	}
	e.said = append(e.said, a.Message())
	if e.done = e.other == nil || last; !e.done {
		reply, err := e.ask(ctx, text)
		switch {
		case errors.Is(err, within.ErrTimeout):
			e.done, step.Done, step.Reward = true, true, math.NaN()
			return e.tell(step), nil
		case err != nil:
			return envs.Step{}, fmt.Errorf("%s: turn program: %w", e.prompt.place, err)
		}
		if e.done = reply.done; !e.done {
			e.said = append(e.said, envs.Message{Role: envs.RoleUser, Content: reply.text})
			if e.asText {
				step.Append = "\n" + reply.text + "\n"
			} else {
				step.Reply = reply.text
			}
			return e.tell(step), nil
		}
	}
	return e.tell(e.end(step, text)), nil
}

// end ends the episode with the text of its last turn.
func (e *episode) end(step envs.Step, text string) envs.Step {
	step.Done, step.Reward = true, math.NaN()
	if e.noAnswers == "" {
		step.Info, step.Reward = verify(text, e.prompt.answer, e.options.Match), 0
		step.Info.CheckForm(e.options.Form)
		step.Info.Kind = e.prompt.kind
		if step.Info.Correct {
			step.Reward = 1
		}
	}
	return step
}

// tell adds the conversation to a step, for rewards.
func (e *episode) tell(step envs.Step) envs.Step {
	if e.used == nil && e.other == nil {
		return step
	}
	step.Said = slices.Clone(e.said)
	if e.used != nil {
		step.Tools = e.used.Used()
	}
	return step
}

// question is what the turn program reads.
type question struct {
	ID       uint64         `json:"id"`
	Turn     int            `json:"turn"` // from 1
	Text     string         `json:"text"` // of the turn
	Messages []envs.Message `json:"messages"`
	Row      dataset.Object `json:"row"`
}

// reply is what the turn program writes.
type reply struct {
	text string
	done bool
}

// ask sends a turn to the program.
func (e *episode) ask(ctx context.Context, text string) (reply, error) {
	replies, errs := program.Ask(ctx, e.other, 1, func(_ int, id uint64) any {
		return question{id, e.turn, text, e.said, e.prompt.row}
	}, readReply)
	return replies[0], errs[0]
}

// readReply reads one line of the program.
func readReply(line []byte) (program.Answer[reply], error) {
	var read struct {
		ID    *uint64 `json:"id"`
		Text  *string `json:"text"`
		Done  bool    `json:"done"`
		Error string  `json:"error"`
	}
	if err := json.Unmarshal(line, &read); err != nil || read.ID == nil {
		return program.Answer[reply]{}, fmt.Errorf(`invalid line %s; want {"id":7,"text":"Go on."} or {"id":7,"done":true}`, words.Quote(string(line)))
	}
	a := program.Answer[reply]{ID: *read.ID, Value: reply{done: read.Done}}
	switch {
	case read.Error != "":
		a.Err = fmt.Errorf("the program reports %s", words.Quote(read.Error))
	case read.Done:
	case read.Text == nil || strings.TrimSpace(*read.Text) == "":
		a.Err = errors.New("the reply has neither text nor done")
	default:
		a.Value.text = *read.Text
	}
	return a, nil
}
