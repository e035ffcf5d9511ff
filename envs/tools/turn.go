package tools

import (
	"context"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Turns answers the tool calls of an episode.
type Turns struct {
	caller   Caller
	format   *Format
	maxCalls int
	used     envs.ToolUse
}

// Caller runs the calls of one episode. What Call returns, errors too, is shown to the model.
type Caller interface {
	Call(ctx context.Context, call Call) (string, error)
	Close() error
}

// NewTurns begins an episode whose model writes calls in a format, maxCalls of them at most.
func NewTurns(caller Caller, format *Format, maxCalls int) *Turns {
	return &Turns{caller: caller, format: format, maxCalls: maxCalls, used: envs.ToolUse{Offered: true}}
}

// Used returns what the episode's calls were so far.
func (t *Turns) Used() envs.ToolUse { return t.used }

// Close closes the caller.
func (t *Turns) Close() error { return t.caller.Close() }

// endOfThought ends the thoughts of models that think before they answer.
const endOfThought = "</think>"

// Answer runs the calls in a text of the model, one after the other. It returns the text as a message of the conversation,
// and the results as messages that answer it; none if the text has no calls. The error is that of ctx.
func (t *Turns) Answer(ctx context.Context, text string) (said envs.Message, results []envs.Message, err error) {
	said = envs.Message{Role: envs.RoleAssistant, Content: text}
	thought, rest := "", text
	if at := strings.LastIndex(text, endOfThought); at >= 0 { // what is in a thought is no call
		thought, rest = text[:at+len(endOfThought)], text[at+len(endOfThought):]
	}
	content, calls := t.format.Parse(rest)
	if len(calls) == 0 {
		if !t.format.attempts(rest) {
			return said, nil, nil
		}
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
	said.Content = thought + content
	said.Fields = dataset.Object{{Name: "role", Value: envs.RoleAssistant}, {Name: "content", Value: said.Content}, {Name: "tool_calls", Value: list}}
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
