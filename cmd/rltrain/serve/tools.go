package serve

import (
	"encoding/json"
	"slices"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/jsonapi"
	"github.com/rltrain/rltrain/rl/policy"
)

// calledTools is the finish_reason of a choice with tool calls.
var calledTools = "tool_calls"

// toolUse is how a request's choices call tools.
type toolUse struct {
	format *tools.Format
	force  string // the start of the message, given to the model; "" = the model decides
	single bool   // return the first call alone

	readers map[int]*tools.Reader // by choice
}

type toolCall struct {
	Index    *int         `json:"index,omitempty"` // in a stream
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function toolFunction `json:"function"`
}

type toolFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// toolUse reads tools, tool_choice and parallel_tool_calls, and adds the tools to the example. It is nil if the model may not
// call any.
func (q *chatBody) toolUse(p *policy.CausalLM, e *chat.Example) (*toolUse, error) {
	mode, name, err := toolChoice(q.ToolChoice)
	if err != nil {
		return nil, err
	}
	if len(q.Tools) == 0 || string(q.Tools) == "null" || jsonapi.Compact(q.Tools) == "[]" {
		if mode != "none" && mode != "auto" {
			return nil, bad("tool_choice", "tool_choice needs tools")
		}
		return nil, nil
	}
	value, err := dataset.Parse(string(q.Tools))
	list, ok := value.([]any)
	if err != nil || !ok {
		return nil, bad("tools", "tools: want a list of {\"type\": \"function\", \"function\": {…}}")
	}
	names, err := tools.Names(list)
	if err != nil {
		return nil, bad("tools", "tools: %v", err)
	}
	if name != "" && !slices.Contains(names, name) {
		return nil, bad("tool_choice", "tool_choice: there is no tool %.100q", name)
	}
	if mode == "none" {
		return nil, nil
	}
	if !p.ReadsTools() {
		return nil, bad("tools", "tools: the model's chat template does not read tools")
	}
	u := &toolUse{format: tools.FormatOf(p.Templates.Source()), single: !or(q.Parallel, true), readers: map[int]*tools.Reader{}}
	if mode == "required" {
		u.force = u.format.Force(name)
	}
	e.Tools = list
	return u, nil
}

// toolChoice returns auto, none or required, with the name of a tool that is required.
func toolChoice(data json.RawMessage) (mode, name string, err error) {
	var named struct {
		Type     string
		Function struct{ Name string }
	}
	if len(data) == 0 || string(data) == "null" {
		return "auto", "", nil
	}
	if json.Unmarshal(data, &mode) == nil {
		if mode == "auto" || mode == "none" || mode == "required" {
			return mode, "", nil
		}
	} else if json.Unmarshal(data, &named) == nil && named.Type == "function" && named.Function.Name != "" {
		return "required", named.Function.Name, nil
	}
	return "", "", bad("tool_choice", "tool_choice: want auto, none, required, or {\"type\": \"function\", \"function\": {\"name\": …}}")
}

// prepare adds the start of a forced call to a prompt, and keeps the text of the format's markers.
func (u *toolUse) prepare(p *policy.CausalLM, prompt []int32, q *sampling) ([]int32, error) {
	if q.Special == nil && slices.ContainsFunc(u.format.Special(), p.Tokenizer.IsControl) {
		keep := false
		q.Special = &keep
	}
	if u.force == "" {
		return prompt, nil
	}
	forced, err := p.Tokenizer.EncodeInner(u.force, false)
	return slices.Concat(prompt, forced), err
}

// split moves the calls in a part's text to m. There are none until the choice is finished.
func (u *toolUse) split(p *part, m *chatMessage, stream bool) {
	var content string
	r := u.readers[p.index]
	if r == nil {
		r = tools.NewReader(u.format)
		u.readers[p.index] = r
		content = r.Add(u.force)
	}
	content += r.Add(p.text)
	m.Content = &content
	if p.done == nil {
		return
	}
	rest, calls := r.End()
	content += rest
	if u.single && len(calls) > 1 {
		calls = calls[:1]
	}
	for i, call := range calls {
		one := toolCall{ID: u.format.NewID(), Type: "function", Function: toolFunction{call.Name, string(call.Arguments)}}
		if stream {
			one.Index = &i
		}
		m.Calls = append(m.Calls, one)
	}
	if content == "" && calls != nil {
		m.Content = nil
	}
}
