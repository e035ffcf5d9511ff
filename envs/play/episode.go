package play

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/words"
)

// episode is one game.
type episode struct {
	*task
	part envs.Part
	seed uint64

	said  []envs.Message
	turn  int
	total float64 // of the rewards
	done  bool

	lock    sync.Mutex // Close may come while a step is late
	process *program.Program
	asking  bool // it has not answered yet
	closed  bool
}

// question is what the environment reads; one of Reset and Step is set.
type question struct {
	ID    uint64     `json:"id"`
	Reset *resetting `json:"reset,omitempty"`
	Step  *acting    `json:"step,omitempty"`
}

type resetting struct {
	Seed uint64    `json:"seed"`
	Part envs.Part `json:"part"`
}

type acting struct {
	Text string `json:"text"`
}

// answer is what it writes.
type answer struct {
	observation []envs.Message // nil = none
	reward      float64
	done        bool
	correct     *bool
}

// Reset implements envs.Env.
func (e *episode) Reset(ctx context.Context) (envs.Observation, error) {
	e.said, e.turn, e.total, e.done = nil, 0, 0, false
	a, err := e.ask(ctx, question{Reset: &resetting{e.seed, e.part}})
	if err == nil && (a.observation == nil || a.done) {
		err = errors.New("the answer to reset has no observation, or is done")
	}
	if err != nil {
		return envs.Observation{}, e.fail(err)
	}
	e.said = a.observation
	if e.asText {
		return envs.Observation{Text: textOf(a.observation) + "\n"}, nil
	}
	return envs.Observation{Messages: slices.Clone(a.observation)}, nil
}

// Step implements envs.Env. Each turn has the reward that the environment gives it.
func (e *episode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the episode has ended; call Reset")
	}
	step := envs.Step{Keep: len(a.Text)}
	if a.Stop == envs.StopCancelled {
		e.done, step.Done, step.Reward = true, true, math.NaN()
		e.release(true)
		return step, nil
	}
	e.turn++
	e.said = append(e.said, envs.Message{Role: envs.RoleAssistant, Content: a.Text})
	got, err := e.ask(ctx, question{Step: &acting{a.Text}})
	if err != nil {
		return envs.Step{}, e.fail(err)
	}
	step.Reward = got.reward
	e.total += got.reward
	e.done = got.done || e.turn == e.options.MaxTurns
	if !e.done && got.observation == nil {
		return envs.Step{}, e.fail(errors.New("the answer to step has no observation, and is not done"))
	}
	if slices.ContainsFunc(got.observation, func(m envs.Message) bool { return m.Role != envs.RoleUser }) {
		return envs.Step{}, e.fail(errors.New("observation: only the user's messages can follow the model's"))
	}
	if e.done {
		step.Done, step.Info = true, &envs.Info{Correct: e.total > 0, FreeForm: true, FoundBy: "environment"}
		if got.correct != nil {
			step.Info.Correct = *got.correct
		}
		e.release(true)
	} else if text := textOf(got.observation); e.asText {
		step.Append = "\n" + text + "\n"
	} else {
		step.Reply = text
	}
	if got.observation != nil {
		e.said = append(e.said, got.observation...)
	}
	step.Said = slices.Clone(e.said)
	return step, nil
}

// ask asks the episode's process, which it takes first if it has none.
func (e *episode) ask(ctx context.Context, q question) (answer, error) {
	e.lock.Lock()
	p, err := e.process, error(nil)
	if e.closed {
		err = errors.New("the episode is closed")
	} else if p == nil {
		p, err = e.take()
		e.process = p
	}
	e.asking = err == nil
	e.lock.Unlock()
	if err != nil {
		return answer{}, err
	}
	answers, errs := program.Ask(ctx, p, 1, func(_ int, id uint64) any { q.ID = id; return q }, readAnswer)
	e.lock.Lock()
	e.asking = errs[0] != nil
	e.lock.Unlock()
	return answers[0], errs[0]
}

// fail ends the episode with its process, whose state is unknown.
func (e *episode) fail(err error) error {
	e.done = true
	e.release(false)
	return fmt.Errorf("environment: %w", err)
}

// release gives the process back to the task if it is ready for another episode, else ends it.
func (e *episode) release(ready bool) {
	e.lock.Lock()
	p := e.process
	e.process = nil
	e.lock.Unlock()
	if p == nil {
		return
	}
	if ready {
		e.give(p)
	} else {
		p.Close()
	}
}

// Close ends the episode.
func (e *episode) Close() error {
	e.lock.Lock()
	e.closed = true
	ready := !e.asking
	e.lock.Unlock()
	e.release(ready)
	return nil
}

// textOf joins the texts of an observation.
func textOf(messages []envs.Message) string {
	texts := make([]string, len(messages))
	for i, m := range messages {
		texts[i] = m.Content
	}
	return strings.Join(texts, "\n")
}

// readAnswer reads a line of the environment.
func readAnswer(line []byte) (program.Answer[answer], error) {
	var read struct {
		ID          *uint64         `json:"id"`
		Observation json.RawMessage `json:"observation"`
		Reward      *float64        `json:"reward"`
		Done        bool            `json:"done"`
		Correct     *bool           `json:"correct"`
		Error       string          `json:"error"`
	}
	if err := json.Unmarshal(line, &read); err != nil || read.ID == nil {
		return program.Answer[answer]{}, fmt.Errorf(`invalid line %s; want {"id":7,"observation":"…","reward":0,"done":false}`, words.QuoteTo(string(line), 200))
	}
	a := program.Answer[answer]{ID: *read.ID, Value: answer{done: read.Done, correct: read.Correct}}
	if read.Error != "" {
		a.Err = fmt.Errorf("the environment reports %s", words.Quote(read.Error))
		return a, nil
	}
	if read.Reward != nil {
		a.Value.reward = *read.Reward
	}
	a.Value.observation, a.Err = observed(read.Observation)
	return a, nil
}

// observed reads an observation: a text, or a list of messages that the assistant's follows.
func observed(data json.RawMessage) ([]envs.Message, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	value, err := dataset.Parse(string(data))
	if err != nil {
		return nil, fmt.Errorf("observation: %w", err)
	}
	if text, ok := value.(string); ok {
		value = []any{dataset.Object{{Name: "role", Value: envs.RoleUser}, {Name: "content", Value: text}}}
	}
	messages, err := chat.Messages(value, false)
	if err != nil {
		return nil, fmt.Errorf("observation: %w", err)
	}
	if messages[len(messages)-1].Role() == envs.RoleAssistant {
		return nil, errors.New("observation: the last message is the assistant's, but the model generates that one")
	}
	return chat.Said(messages), nil
}
