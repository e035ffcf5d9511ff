package chat

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Templates are the chat templates of a model folder by name; a single one is called "default". They are safe for
// concurrent use.
type Templates struct {
	byName map[string]*named
}

type named struct {
	source string // where it is from, for messages
	text   string
	*jinja.Template
}

// Options are the inputs of a template besides the messages.
type Options struct {
	// Name selects a template. "" means tool_use if there are tools and such a template, else default.
	Name string
	// Tools are the functions that the model may call, as JSON schemas; Documents what it may read. A template does not
	// see nil ones.
	Tools, Documents []*jinja.Dict
	// AddGenerationPrompt adds the opening of the assistant's next message.
	AddGenerationPrompt bool
	// Special are the special tokens by name, such as bos_token.
	Special map[string]string
	// Variables are other variables of the template, such as enable_thinking; they override Special.
	Variables map[string]jinja.Value
	// Now is the clock for templates that print the date. If it is zero, such a template is an error.
	Now time.Time
}

// Parse reads one template and calls it "default"; source names it in errors.
func Parse(source, text string) (*Templates, error) {
	t := &Templates{map[string]*named{}}
	return t, t.add("default", source, text)
}

func (t *Templates) add(name, source, text string) error {
	parsed, err := jinja.Parse(text)
	if err != nil {
		return fmt.Errorf("chat: %s: %w", source, err)
	}
	t.byName[name] = &named{source, text, parsed}
	return nil
}

// Names are the names of the templates, sorted.
func (t *Templates) Names() []string { return slices.Sorted(maps.Keys(t.byName)) }

// Source is the text of all templates.
func (t *Templates) Source() string {
	var b strings.Builder
	for _, name := range t.Names() {
		b.WriteString(t.byName[name].text + "\x00")
	}
	return b.String()
}

// Default is the text of the template that is used without tools.
func (t *Templates) Default() []byte {
	if one, ok := t.byName["default"]; ok {
		return []byte(one.text)
	}
	return nil
}

// choose is get_chat_template of transformers.
func (t *Templates) choose(o Options) (*named, error) {
	name := o.Name
	if name == "" && o.Tools != nil && t.byName["tool_use"] != nil {
		name = "tool_use"
	} else if name == "" {
		name = "default"
	}
	if template, ok := t.byName[name]; ok {
		return template, nil
	}
	return nil, fmt.Errorf("chat: there is no chat template %q: the folder has %s", name, strings.Join(t.Names(), ", "))
}

// fixed are the variables that Render sets itself.
var fixed = []string{"messages", "tools", "documents", "add_generation_prompt"}

// Render turns a conversation of at least one message into text. Generated lists the bytes that the template marks as
// the assistant's.
func (t *Templates) Render(messages []Message, o Options) (jinja.Rendering, error) {
	if len(messages) == 0 {
		return jinja.Rendering{}, errors.New("chat: the conversation has no messages")
	}
	template, err := t.choose(o)
	if err != nil {
		return jinja.Rendering{}, err
	}
	variables := jinja.NewDict()
	for name, token := range o.Special {
		variables.Set(name, token)
	}
	for name, v := range o.Variables {
		if slices.Contains(fixed, name) {
			return jinja.Rendering{}, fmt.Errorf("chat: the variable %q is set by an option of its own", name)
		}
		variables.Set(name, v)
	}
	list := &jinja.List{}
	for _, m := range messages {
		list.Items = append(list.Items, m.seen())
	}
	variables.Set("messages", list)
	variables.Set("tools", dicts(o.Tools))
	variables.Set("documents", dicts(o.Documents))
	variables.Set("add_generation_prompt", o.AddGenerationPrompt)
	out, err := template.Render(variables, o.Now)
	if err != nil {
		return jinja.Rendering{}, fmt.Errorf("chat: %s: %w", template.source, err)
	}
	return out, nil
}

// dicts is ds as a template sees it: None for nil.
func dicts(ds []*jinja.Dict) jinja.Value {
	if ds == nil {
		return nil
	}
	l := &jinja.List{}
	for _, d := range ds {
		l.Items = append(l.Items, d)
	}
	return l
}
