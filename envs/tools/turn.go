package tools

import (
	"context"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Turns answers the tool calls of an episode.
type Turns struct {
	caller   Caller
	format   *Format
	maxCalls int
	strict   bool
	used     envs.ToolUse
}

// Caller runs the calls of one episode. What Call returns, errors too, is shown to the model.
type Caller interface {
	Call(ctx context.Context, call Call) (string, error)
	Close() error
}

// NewTurns begins an episode whose model writes calls in a format, maxCalls of them at most. With strict, a message whose calls are
// not written exactly as the format has them is one whose calls cannot be read.
func NewTurns(caller Caller, format *Format, maxCalls int, strict bool) *Turns {
	return &Turns{caller: caller, format: format, maxCalls: maxCalls, strict: strict, used: envs.ToolUse{Offered: true}}
}

// Used returns what the episode's calls were so far.
func (t *Turns) Used() envs.ToolUse { return t.used }

// Close closes the caller.
func (t *Turns) Close() error { return t.caller.Close() }

// Answer runs the calls in an action, one after the other. It returns the action as a message of the conversation, and the
// results as messages that answer it; none if the action has no calls. The error is that of ctx.
func (t *Turns) Answer(ctx context.Context, a envs.Action) (said envs.Message, results []envs.Message, err error) {
	said = a.Message()
	content, calls := t.format.Parse(a.Text)
	if len(calls) == 0 && !t.format.attempts(a.Text) {
		return said, nil, nil
	}
	if len(calls) == 0 || t.strict && !t.format.Exactly(a.Text) {
		t.used.Malformed++
		return said, []envs.Message{t.result("unknown", "error: the tool call cannot be read; write "+t.format.Example())}, nil
	}
	list := make([]any, len(calls))
	for i, call := range calls {
		arguments, parseErr := dataset.Parse(string(call.Arguments))
		if parseErr != nil {
			arguments = dataset.Object{}
		}
		list[i] = Called(t.id(i), call.Name, arguments)
	}
	a.Text = content
	said = a.Message()
	if said.Fields == nil {
		said.Fields = dataset.Object{{Name: "role", Value: envs.RoleAssistant}, {Name: "content", Value: content}}
	}
	said.Fields = said.Fields.With("tool_calls", list)
	for _, call := range calls {
		answer, err := t.call(ctx, call)
		if ctx.Err() != nil {
			return said, nil, ctx.Err()
		}
		if err != nil {
			t.used.Failed++
			answer = "error: " + err.Error()
		}
		results = append(results, t.result(call.Name, answer))
	}
	return said, results, nil
}

// call runs one call, unless there were too many.
func (t *Turns) call(ctx context.Context, call Call) (string, error) {
	if t.used.Calls >= t.maxCalls {
		t.used.Calls++
		return "", fmt.Errorf("no more than %d tool calls are allowed; answer without tools", t.maxCalls)
	}
	t.used.Calls++
	return t.caller.Call(ctx, call)
}

// result is the message that answers the newest call.
func (t *Turns) result(name, text string) envs.Message {
	return envs.Message{Role: envs.RoleTool, Content: text, Fields: dataset.Object{
		{Name: "role", Value: envs.RoleTool}, {Name: "tool_call_id", Value: t.id(-1)}, {Name: "name", Value: name}, {Name: "content", Value: text},
	}}
}

// id is the id of the call after the next i calls. Templates write ids into the prompt, so they are the same in every run,
// and of the 9 characters that Mistral's accept.
func (t *Turns) id(i int) string {
	return fmt.Sprintf("call%05d", (t.used.Calls+t.used.Malformed+i)%100_000)
}
