package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/internal/words"
)

// task is the agent of a run.
type task struct {
	*options
	program []string // with its arguments
	seed    uint64
	format  *tools.Format // of the model's tool calls; nil if its chat template does not describe tools
	server  *server
}

// Len implements envs.Task: an agent has episodes without end.
func (t *task) Len(envs.Part) int { return 0 }

// Episode implements envs.Task.
func (t *task) Episode(part envs.Part, index int) (envs.Env, error) {
	if index < 0 {
		return nil, fmt.Errorf("episode %d is out of range", index)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", t.seed, part, index)
	return &episode{task: t, part: part, number: h.Sum64() >> 11, calls: make(chan *call)}, nil // a number that every JSON reader has exactly
}

// MeanReward implements envs.Scoring.
func (t *task) MeanReward() bool { return true }

// Replies implements envs.Conversing.
func (t *task) Replies() []string { return []string{envs.RoleTool, envs.RoleUser} }

// Waits implements envs.Conversing.
func (t *task) Waits() bool { return true }

// Close ends the server.
func (t *task) Close() error { return t.server.close() }

// episode is one run of the agent.
type episode struct {
	*task
	part   envs.Part
	number uint64     // the agent's seed
	calls  chan *call // of the agent, as the server reads them

	said    []chat.Message // of the last call, with its answer
	tools   string         // of the first call
	pending *call          // waits for its answer
	turn    int
	called  int // tool calls

	lock   sync.Mutex // Close may come while a step is late
	key    string
	run    *program.Once
	posted *verdict // unless nil, in place of the output's
}

// verdict is what the agent says of its episode.
type verdict struct {
	Reward  *float64 `json:"reward"`
	Correct *bool    `json:"correct"`
}

// Reset implements envs.Env: it starts the agent and waits for its first call.
func (e *episode) Reset(ctx context.Context) (envs.Observation, error) {
	e.stop()
	e.said, e.pending, e.turn, e.called, e.posted = nil, nil, 0, 0, nil
	if err := e.begin(); err != nil {
		return envs.Observation{}, fmt.Errorf("agent: %w", err)
	}
	c, err := e.wait(ctx)
	if err == nil && c == nil {
		_, err = e.verdict()
		err = errors.Join(errors.New("it ended without a call"), err)
	}
	if err != nil {
		e.stop()
		return envs.Observation{}, fmt.Errorf("agent: %w", err)
	}
	e.pending, e.said, e.tools = c, c.messages, c.tools
	return *c.shown(), nil
}

// shown is what the model reads of a call that continues no other.
func (c *call) shown() *envs.Observation {
	return &envs.Observation{Messages: chat.Said(c.messages), TemplateInputs: envs.TemplateInputs{Tools: c.list}}
}

// begin starts the agent with a key of its own.
func (e *episode) begin() error {
	key, address, err := e.server.enter(e)
	if err != nil {
		return err
	}
	question, err := json.Marshal(map[string]any{"seed": e.number, "part": e.part})
	if err != nil {
		return err
	}
	env := append(program.Environment(), "OPENAI_BASE_URL="+address, "OPENAI_API_KEY="+key)
	run, err := program.Start(e.program, env, append(question, '\n'))
	e.lock.Lock()
	e.key, e.run = key, run
	e.lock.Unlock()
	return err
}

// wait returns the agent's next call, nil at its end.
func (e *episode) wait(ctx context.Context) (*call, error) {
	run := e.running()
	if run == nil {
		return nil, errors.New("the episode is closed")
	}
	return within.Do(ctx, time.Duration(e.Timeout*float64(time.Second)), func(ctx context.Context) (*call, error) {
		for {
			select {
			case c := <-e.calls:
				if e.turn < e.MaxTurns {
					return c, nil
				}
				c.answer <- reply{status: 429, fault: fmt.Sprintf("the episode has no more than %d calls", e.MaxTurns)}
			case <-run.Done():
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
}

// running is the agent's process; nil after the episode.
func (e *episode) running() *program.Once {
	e.lock.Lock()
	defer e.lock.Unlock()
	return e.run
}

// verdict is what the agent said when it had ended.
func (e *episode) verdict() (v verdict, err error) {
	run := e.running()
	if run == nil {
		return v, errors.New("the episode is closed")
	}
	last, status, said := run.Result()
	if said != "" {
		status += ": " + words.QuoteTo(said, 300)
	}
	e.lock.Lock()
	posted := e.posted
	e.lock.Unlock()
	if posted != nil {
		return *posted, nil
	}
	if err := json.Unmarshal([]byte(last), &v); err != nil || v.Reward == nil {
		return v, fmt.Errorf(`its last line is %s (%s); want {"reward": 1}`, words.QuoteTo(last, 100), status)
	}
	if math.IsInf(*v.Reward, 0) || math.IsNaN(*v.Reward) {
		return v, fmt.Errorf("the reward is %v", *v.Reward)
	}
	return v, nil
}

// Step implements envs.Env: it answers the agent's call and waits for the next one.
func (e *episode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	if e.pending == nil {
		return envs.Step{}, errors.New("the episode has ended; call Reset")
	}
	step := envs.Step{Keep: len(a.Text)}
	if a.Stop == envs.StopCancelled {
		e.stop()
		step.Done, step.Reward = true, math.NaN()
		return step, nil
	}
	said := e.answered(a)
	e.pending.answer <- reply{said: said, cut: a.Stop == envs.StopLength}
	e.pending = nil
	e.said = append(e.said[:len(e.said):len(e.said)], chat.Message(said))
	e.turn++
	c, err := e.wait(ctx)
	if err == nil && c != nil {
		if c.tools == e.tools {
			step.Results = chat.Continuation(e.said, c.messages)
		}
		if step.Results == nil {
			step.Anew = c.shown()
		}
		e.pending, e.said, e.tools = c, c.messages, c.tools
	}
	if err == nil && c == nil {
		var v verdict
		if v, err = e.verdict(); err == nil {
			step.Done, step.Reward = true, *v.Reward
			step.Info = &envs.Info{Correct: step.Reward > 0, FreeForm: true, FoundBy: "agent"}
			if v.Correct != nil {
				step.Info.Correct = *v.Correct
			}
		}
	}
	if err != nil || step.Done {
		e.stop()
	}
	if err != nil {
		return envs.Step{}, fmt.Errorf("agent: %w", err)
	}
	step.Said = chat.Said(e.said)
	step.Tools = envs.ToolUse{Offered: e.tools != "", Calls: e.called}
	return step, nil
}

// answered is an action as a message of the conversation, with its tool calls.
func (e *episode) answered(a envs.Action) dataset.Object {
	content, calls := a.Text, []tools.Call(nil)
	if e.tools != "" && e.format != nil {
		content, calls = e.format.Parse(a.Text)
	}
	m := dataset.Object{{Name: "role", Value: envs.RoleAssistant}, {Name: "content", Value: content}}
	if a.Thinking != "" {
		m = m.With("reasoning_content", a.Thinking)
	}
	if len(calls) == 0 {
		return m
	}
	var list []any
	for _, call := range calls {
		arguments, err := dataset.Parse(string(call.Arguments))
		if err != nil {
			arguments = dataset.Object{}
		}
		list = append(list, tools.Called(fmt.Sprintf("call%05d", e.called%100_000), call.Name, arguments)) // the same in every run
		e.called++
	}
	return m.With("tool_calls", list)
}

// stop ends the agent, and its key.
func (e *episode) stop() {
	e.lock.Lock()
	key, run := e.key, e.run
	e.key, e.run = "", nil
	e.lock.Unlock()
	if key != "" {
		e.server.leave(key)
	}
	if run != nil {
		run.Kill()
	}
}

// Close ends the episode.
func (e *episode) Close() error {
	e.stop()
	return nil
}
