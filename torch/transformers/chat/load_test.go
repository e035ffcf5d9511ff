package chat

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

func TestLoad(t *testing.T) {
	list := `{"chat_template":[{"name":"default","template":"list"},{"name":"tool_use","template":"list tools"}]}`
	tools := []*jinja.Dict{jinja.NewDict()}
	for _, tt := range []struct {
		name    string
		files   map[string]string
		options Options
		want    string
	}{
		{"jinja wins over the config", map[string]string{"chat_template.jinja": "file", "tokenizer_config.json": `{"chat_template":"config"}`}, Options{}, "file"},
		{"config wins over the processor's", map[string]string{"tokenizer_config.json": `{"chat_template":"config"}`, "chat_template.json": `{"chat_template":"processor"}`}, Options{}, "config"},
		{"processor's", map[string]string{"tokenizer_config.json": `{"chat_template":null}`, "chat_template.json": `{"chat_template":"processor"}`}, Options{}, "processor"},
		{"list", map[string]string{"tokenizer_config.json": list}, Options{}, "list"},
		{"list with tools", map[string]string{"tokenizer_config.json": list}, Options{Tools: tools}, "list tools"},
		{"list by name", map[string]string{"tokenizer_config.json": list}, Options{Name: "tool_use"}, "list tools"},
		{"name wins over tools", map[string]string{"tokenizer_config.json": list}, Options{Name: "default", Tools: tools}, "list"},
		{"folder", map[string]string{"chat_template.jinja": "file", "additional_chat_templates/rag.jinja": "rag"}, Options{Name: "rag"}, "rag"},
		{"folder's tools", map[string]string{"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "t"}, Options{Tools: tools}, "t"},
		{"folder wins over the config", map[string]string{"tokenizer_config.json": list, "additional_chat_templates/default.jinja": "d"}, Options{Tools: tools}, "d"},
		{"odd folder name", map[string]string{"a[b]/chat_template.jinja": "odd", "a[b]/additional_chat_templates/x.jinja": "x"}, Options{}, "odd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := must.Folder(t, tt.files)
			if tt.want == "odd" {
				dir = filepath.Join(dir, "a[b]")
			}
			templates := must.Get(Load(dir))(t)
			out, err := templates.Render([]Message{NewMessage("user", "x")}, tt.options)
			expect.True(t, err == nil && out.Text == tt.want, "%q, %v, want %q of %v", out.Text, err, tt.want, templates.Names())
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"bad template", map[string]string{"chat_template.jinja": "a\n{% if %}"}, "chat_template.jinja: line 2"},
		{"bad template in a list", map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"x","template":"{{"}]}`}, `chat_template "x": line 1`},
		{"bad JSON", map[string]string{"tokenizer_config.json": "{"}, "tokenizer_config.json"},
		{"number", map[string]string{"tokenizer_config.json": `{"chat_template":3}`}, "tokenizer_config.json: chat_template"},
		{"nested without end", map[string]string{"chat_template.jinja": strings.Repeat("{% if x %}", 1<<16)}, "chat_template.jinja: line 1"},
		{"deep JSON", map[string]string{"tokenizer_config.json": `{"chat_template":` + strings.Repeat("[", 1<<16)}, "exceeded max depth"},
		{"deep JSON elsewhere", map[string]string{"chat_template.json": `{"x":` + strings.Repeat(`{"x":`, 1<<16)}, "exceeded max depth"},
		{"no name", map[string]string{"tokenizer_config.json": `{"chat_template":[{"template":"x"}]}`}, "entry 0 has no name"},
	}
	for _, tt := range tests {
		expect.Failure(Load(must.Folder(t, tt.files)))(t, tt.want)
	}
	for _, files := range []map[string]string{{}, {"tokenizer_config.json": "{}"}, {"tokenizer_config.json": `{"chat_template":[]}`}} {
		_, err := Load(must.Folder(t, files))
		expect.True(t, errors.Is(err, ErrNone), "%v: %v", files, err)
	}
}

func TestRenderRefuses(t *testing.T) {
	templates := must.Get(Load(must.Folder(t, map[string]string{
		"additional_chat_templates/rag.jinja":     "{{ raise_exception('not so') }}",
		"additional_chat_templates/recurse.jinja": "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(messages) }}",
	})))(t)
	one := []Message{NewMessage("user", "x")}
	tests := []struct {
		name     string
		messages []Message
		options  Options
		want     string
	}{
		{"no messages", nil, Options{Name: "rag"}, "no messages"},
		{"no default", one, Options{}, `no chat template "default": the folder has rag, recurse`},
		{"raised", one, Options{Name: "rag"}, "rag.jinja: line 1: not so"},
		{"recurses without end", one, Options{Name: "recurse"}, "recurse.jinja: line 1"},
		{"variable", one, Options{Name: "rag", Variables: map[string]jinja.Value{"messages": nil}}, `"messages" is set by an option`},
	}
	for _, tt := range tests {
		expect.Failure(templates.Render(tt.messages, tt.options))(t, tt.want)
	}
}

func TestMessage(t *testing.T) {
	var m Message
	must.Do(t, m.UnmarshalJSON([]byte(`{"content":null,"role":"assistant","z":1,"reasoning":"r","a":[]}`)))
	diff := cmp.Diff([]string{"thinking", "role", "z", "reasoning", "a", "reasoning_content"}, m.seen().Keys())
	expect.True(t, diff == "" && m.Role() == "assistant", "%v %v", m.Role(), diff)
	expect.Error(t, m.UnmarshalJSON([]byte(`["x"]`)), "a message is a JSON object")
	deep := `{"role":"user","content":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}"
	expect.Error(t, m.UnmarshalJSON([]byte(deep)), "nests more than 500 deep")
	expect.True(t, (Message{}).Role() == "" && (Message{}).seen().Len() == 0, "the zero message is not empty")
}
