package policy

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	template "github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// renderer is a way to render a conversation.
type renderer = func(*template.Templates, []template.Message, template.Options) (jinja.Rendering, error)

// renderOnce is render without a look at tool calls.
func (p *CausalLM) renderOnce(messages []chat.Message, in envs.TemplateInputs, open bool, how renderer) (jinja.Rendering, error) {
	if p.Templates == nil {
		return jinja.Rendering{}, fmt.Errorf("the data has messages, but %s %w; choose a chat model, or data with text", p.dir, template.ErrNone)
	}
	o, err := p.templateOptions(in, open)
	if err != nil {
		return jinja.Rendering{}, err
	}
	given, flat, parts := make([]template.Message, len(messages)), make([]template.Message, len(messages)), false
	for i, m := range messages {
		if given[i], err = templateMessage(m); err != nil {
			return jinja.Rendering{}, fmt.Errorf("message %d: %w", i+1, err)
		}
		flat[i] = given[i]
		if m.Parts() != nil {
			parts = true
			if flat[i], err = templateMessage(chat.Message(dataset.Object(m).With("content", m.Text()))); err != nil {
				return jinja.Rendering{}, fmt.Errorf("message %d: %w", i+1, err)
			}
		}
	}
	if !parts {
		return how(p.Templates, given, o)
	}
	if !p.readsParts(o) {
		return how(p.Templates, flat, o)
	}
	rendered, err := how(p.Templates, given, o)
	if err != nil {
		return rendered, err
	}
	for i, m := range messages {
		for _, part := range m.Parts() {
			if !strings.Contains(rendered.Text, strings.TrimSpace(part)) {
				return rendered, fmt.Errorf("message %d: the chat template drops a part of the content; give the content as a string", i+1)
			}
		}
	}
	return rendered, nil
}

// readsParts tells whether the template renders a list of one text as it renders the text. A template that does not is
// given the text of the parts, so that nothing is lost.
func (p *CausalLM) readsParts(o template.Options) bool {
	const probe = "rltrain"
	text, err := p.Templates.Render([]template.Message{template.NewMessage(envs.RoleUser, probe)}, o)
	if err != nil {
		return false
	}
	part := dataset.Object{{Name: "type", Value: "text"}, {Name: "text", Value: probe}}
	listed, err := templateMessage(chat.Message{{Name: "role", Value: envs.RoleUser}, {Name: "content", Value: []any{part}}})
	if err != nil {
		return false
	}
	list, err := p.Templates.Render([]template.Message{listed}, o)
	return err == nil && list.Text == text.Text
}

// templateOptions are what the template gets besides the messages.
func (p *CausalLM) templateOptions(in envs.TemplateInputs, open bool) (o template.Options, err error) {
	o = template.Options{AddGenerationPrompt: open, Special: p.Tokenizer.Special(), Now: p.Template.Now}
	if o.Tools, err = templateDicts("tool", in.Tools); err != nil {
		return o, err
	}
	if o.Documents, err = templateDicts("document", in.Documents); err != nil {
		return o, err
	}
	for _, field := range slices.Concat(p.Template.Args, in.TemplateArgs) {
		if o.Variables == nil {
			o.Variables = map[string]jinja.Value{}
		}
		if o.Variables[field.Name], err = templateValue(field.Value); err != nil {
			return o, fmt.Errorf("template argument %s: %w", field.Name, err)
		}
	}
	return o, nil
}

func templateDicts(what string, list []any) (dicts []*jinja.Dict, err error) {
	for i, value := range list {
		object, ok := value.(dataset.Object)
		if !ok {
			return nil, fmt.Errorf("%s %d is %s, want an object", what, i+1, dataset.Kind(value))
		}
		d, err := templateValue(object)
		if err != nil {
			return nil, fmt.Errorf("%s %d: %w", what, i+1, err)
		}
		dicts = append(dicts, d.(*jinja.Dict))
	}
	return dicts, nil
}

func templateMessage(m chat.Message) (template.Message, error) {
	fields, err := templateValue(dataset.Object(m))
	if err != nil {
		return template.Message{}, err
	}
	return template.MessageOf(fields.(*jinja.Dict)), nil
}

// templateValue is a value of a data set as templates see it.
func templateValue(value any) (jinja.Value, error) {
	switch v := value.(type) {
	case nil, bool, string, int64, float64:
		return v, nil
	case json.Number:
		if n, ok := new(big.Int).SetString(v.String(), 10); ok {
			return n, nil
		}
		return v.Float64()
	case []any:
		list := &jinja.List{Items: make([]jinja.Value, len(v))}
		for i, item := range v {
			var err error
			if list.Items[i], err = templateValue(item); err != nil {
				return nil, err
			}
		}
		return list, nil
	case dataset.Object:
		dict := jinja.NewDict()
		for _, f := range v {
			item, err := templateValue(f.Value)
			if err != nil {
				return nil, err
			}
			dict.Set(f.Name, item)
		}
		return dict, nil
	}
	return nil, fmt.Errorf("got %s, which templates cannot read", dataset.Kind(value))
}

// Conversation is an environment's messages as examples have them.
func Conversation(messages []envs.Message) []chat.Message {
	out := make([]chat.Message, len(messages))
	for i, m := range messages {
		if out[i] = chat.Message(m.Fields); m.Fields == nil {
			out[i] = chat.Message{{Name: "role", Value: m.Role}, {Name: "content", Value: m.Content}}
		}
	}
	return out
}
