package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	template "github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// render applies the chat template to messages; open begins the assistant's next turn. It is an error if the template drops
// tool calls or their results.
func (p *CausalLM) render(messages []chat.Message, in envs.TemplateInputs, open bool, how renderer) (jinja.Rendering, error) {
	rendered, err := p.renderOnce(messages, in, open, how)
	if !slices.ContainsFunc(messages, func(m chat.Message) bool { return callsOf(m) != nil }) {
		return rendered, err
	}
	if err != nil {
		// Templates such as DeepSeek-V3's join the arguments as text.
		again, failed := p.renderOnce(withTextArguments(messages), in, open, how)
		if failed != nil {
			return rendered, err
		}
		rendered = again
	}
	return rendered, p.checkCalls(messages, in)
}

// callsOf returns the tool calls of a message, nil if it has none.
func callsOf(m chat.Message) []any {
	value, _ := dataset.Object(m).Get("tool_calls")
	calls, _ := value.([]any)
	if len(calls) == 0 {
		return nil
	}
	return calls
}

// withTextArguments returns messages whose calls have their arguments as JSON in a string.
func withTextArguments(messages []chat.Message) []chat.Message {
	out := slices.Clone(messages)
	for i, m := range out {
		calls := slices.Clone(callsOf(m))
		if calls == nil {
			continue
		}
		for k, value := range calls {
			call, _ := value.(dataset.Object)
			described, _ := call.Get("function")
			function, _ := described.(dataset.Object)
			given, _ := function.Get("arguments")
			arguments, ok := given.(dataset.Object)
			if !ok {
				continue
			}
			if data, err := arguments.MarshalJSON(); err == nil {
				calls[k] = call.With("function", function.With("arguments", string(data)))
			}
		}
		out[i] = chat.Message(dataset.Object(m).With("tool_calls", calls))
	}
	return out
}

// checkCalls is the error of a template that drops the calls or the tool results of messages: training would go on without
// them.
func (p *CausalLM) checkCalls(messages []chat.Message, in envs.TemplateInputs) error {
	drops := p.dropped(in)
	switch i := slices.IndexFunc(messages, func(m chat.Message) bool { return m.Role() == envs.RoleTool }); {
	case drops.calls:
		return errors.New("the chat template drops tool_calls; use a model whose template writes them, or pass --chat-template FILE")
	case drops.results && i >= 0:
		return fmt.Errorf("message %d: the chat template drops messages of the role tool; use a model whose template writes them, or pass --chat-template FILE", i+1)
	}
	return nil
}

// dropped probes the template once for each inputs.
func (p *CausalLM) dropped(in envs.TemplateInputs) drops {
	key, err := json.Marshal([]any{in, p.Template.Args})
	if err != nil { // a number that JSON lacks
		return p.probe(in)
	}
	p.probed.lock.Lock()
	defer p.probed.lock.Unlock()
	if p.probed.template != p.Templates || len(p.probed.known) >= mostProbed {
		p.probed.template, p.probed.known = p.Templates, map[string]drops{}
	}
	found, ok := p.probed.known[string(key)]
	if !ok {
		found = p.probe(in)
		p.probed.known[string(key)] = found
	}
	return found
}

// probe renders conversations with a call and its result.
func (p *CausalLM) probe(in envs.TemplateInputs) (d drops) {
	const name, said = "rltrain_probe", "rltrainSAID"
	plain := chat.Turn(envs.RoleAssistant, "")
	calling := chat.Message(dataset.Object(plain).With("tool_calls", []any{tools.Called("rltrain00", name, dataset.Object{})}))
	render := func(said ...chat.Message) (string, bool) {
		said = slices.Concat([]chat.Message{chat.Turn(envs.RoleUser, "-")}, said)
		rendered, err := p.renderOnce(said, in, false, (*template.Templates).Render)
		return rendered.Text, err == nil
	}
	without, ok := render(plain)
	with, both := render(calling)
	d.calls = ok && both && with == without
	result := chat.Message{{Name: "role", Value: envs.RoleTool}, {Name: "tool_call_id", Value: "rltrain00"}, {Name: "name", Value: name}, {Name: "content", Value: said}}
	text, ok := render(calling, result)
	d.results = ok && !strings.Contains(text, said)
	return d
}

// ReadsTools reports whether the chat template writes descriptions of tools into the prompt.
func (p *CausalLM) ReadsTools() bool {
	if p.Templates == nil {
		return false
	}
	probe := []chat.Message{chat.Turn(envs.RoleUser, "-")}
	tool := tools.Tool{Name: "probe", Description: "-", Parameters: dataset.Object{{Name: "type", Value: "object"}, {Name: "properties", Value: dataset.Object{}}}}
	without, err := p.render(probe, envs.TemplateInputs{}, true, (*template.Templates).Render)
	if err != nil {
		return false
	}
	with, err := p.render(probe, envs.TemplateInputs{Tools: []any{tool.Described()}}, true, (*template.Templates).Render)
	return err == nil && with.Text != without.Text
}

// ToolTemplate returns the source of the chat template if it describes tools, else "".
func (p *CausalLM) ToolTemplate() string {
	if !p.ReadsTools() {
		return ""
	}
	return p.Templates.Source()
}
