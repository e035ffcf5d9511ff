package play

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/words"
)

// programGame is an episode that a program plays.
type programGame struct {
	*world
	part envs.Part
	seed uint64

	lock    sync.Mutex // close may come while a step is late
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

func (g *programGame) reset(ctx context.Context) (answer, error) {
	return g.ask(ctx, question{Reset: &resetting{g.seed, g.part}})
}

func (g *programGame) step(ctx context.Context, said envs.Action) (answer, error) {
	a, err := g.ask(ctx, question{Step: &acting{said.Text}})
	if slices.ContainsFunc(a.observation, func(m envs.Message) bool { return m.Role != envs.RoleUser }) {
		return a, errors.New("observation: only the user's messages can follow the model's")
	}
	return a, err
}

// ask asks the episode's process, which it takes first if it has none.
func (g *programGame) ask(ctx context.Context, q question) (answer, error) {
	g.lock.Lock()
	p, err := g.process, error(nil)
	if g.closed {
		err = errors.New("the episode is closed")
	} else if p == nil {
		p, err = g.take()
		g.process = p
	}
	g.asking = err == nil
	g.lock.Unlock()
	if err != nil {
		return answer{}, err
	}
	answers, errs := program.Ask(ctx, p, 1, func(_ int, id uint64) any { q.ID = id; return q }, readAnswer)
	g.lock.Lock()
	g.asking = errs[0] != nil // after an error its state is unknown
	g.lock.Unlock()
	return answers[0], errs[0]
}

// release gives the process back if it is ready for another episode, else ends it.
func (g *programGame) release() {
	g.lock.Lock()
	p, ready := g.process, !g.asking
	g.process = nil
	g.lock.Unlock()
	switch {
	case p == nil:
	case ready:
		g.give(p)
	default:
		p.Close()
	}
}

func (g *programGame) close() {
	g.lock.Lock()
	g.closed = true
	g.lock.Unlock()
	g.release()
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
