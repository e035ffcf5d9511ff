package chat_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// clock is the time of strftime_now in the cases.
var clock = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// A chatCase is a conversation and transformers' rendering: the text and the bytes of its generation blocks, or nothing
// if it raises.
type chatCase struct {
	Name      string            `json:"name"`
	Template  string            `json:"template"`
	Messages  []chat.Message    `json:"messages"`
	Tools     json.RawMessage   `json:"tools"`
	Documents json.RawMessage   `json:"documents"`
	Prompt    bool              `json:"add_generation_prompt"`
	Special   map[string]string `json:"special"`
	Variables json.RawMessage   `json:"variables"`
	Text      *string           `json:"text"`
	Generated [][2]int          `json:"generated"`
}

func (c chatCase) options(t *testing.T) chat.Options {
	o := chat.Options{AddGenerationPrompt: c.Prompt, Special: c.Special, Now: clock, Tools: objects(t, c.Tools), Documents: objects(t, c.Documents)}
	o.Variables = map[string]jinja.Value{}
	v := must.Get(jinja.ParseJSON(c.Variables))(t)
	for _, name := range v.(*jinja.Dict).Keys() {
		o.Variables[name], _ = v.(*jinja.Dict).Get(name)
	}
	return o
}

// objects reads null or a list of objects.
func objects(t *testing.T, data json.RawMessage) []*jinja.Dict {
	v := must.Get(jinja.ParseJSON(data))(t)
	if v == nil {
		return nil
	}
	all := []*jinja.Dict{}
	for _, item := range v.(*jinja.List).Items {
		all = append(all, item.(*jinja.Dict))
	}
	return all
}

// The cases are in testdata, and in the file named by $RLTRAIN_CHAT_CASES.
func TestRenderAsTransformers(t *testing.T) {
	files := []string{"testdata/chats.jsonl"}
	if more := os.Getenv("RLTRAIN_CHAT_CASES"); more != "" {
		files = append(files, more)
	}
	for _, file := range files {
		data := must.Get(os.ReadFile(file))(t)
		n := 0
		for line := range strings.Lines(string(data)) {
			c := must.Into[chatCase](t, json.Unmarshal, []byte(line))
			n++
			t.Run(c.Name, func(t *testing.T) { checkChat(t, c) })
		}
		t.Logf("%d conversations of %s", n, file)
	}
}

func checkChat(t *testing.T, c chatCase) {
	templates := must.Get(chat.Parse("case", c.Template))(t)
	got, err := templates.Render(c.Messages, c.options(t))
	if c.Text == nil {
		expect.True(t, err != nil, "no error, but %q", got.Text)
		return
	}
	must.Do(t, err)
	expect.Equal(t, *c.Text, got.Text)
	spans := [][2]int{}
	for _, s := range got.Generated {
		spans = append(spans, [2]int{s.Start, s.End})
	}
	diff := cmp.Diff(c.Generated, spans)
	expect.True(t, diff == "" || got.Unplaced, "generated: : %v", diff)
}

// Common templates without {% generation %} marks.
var unmarked = map[string]string{
	"chatml": `{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`,
	"brackets": `{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}`,
	"end of the text": `{% for m in messages %}<|{{ m.role }}|>
{{ m.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% else %}{{ eos_token }}{% endif %}`,
	"thoughts of the last turn": `{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}<think>
</think>
{% endif %}{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`,
	"opened thoughts": `{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|><think>
{% endif %}`,
	"tools": `{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for call in m.tool_calls or [] %}[{{ call.name }}]{% endfor %};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`,
}

func TestRenderAssistant(t *testing.T) {
	talk := []chat.Message{chat.NewMessage("user", "a <|end|> b"), chat.NewMessage("assistant", "one"), chat.NewMessage("user", "c"), chat.NewMessage("assistant", "one one")}
	for _, tt := range []struct {
		template string
		messages []chat.Message
		want     []string
	}{
		{"chatml", talk, []string{"one<|im_end|>\n", "one one<|im_end|>\n"}},
		{"chatml", talk[:3], []string{"one<|im_end|>\n"}},
		{"chatml", talk[:1], nil},
		{"chatml", talk[1:], []string{"one<|im_end|>\n", "one one<|im_end|>\n"}},
		{"chatml", []chat.Message{talk[0], talk[1], talk[1]}, []string{"one<|im_end|>\n", "one<|im_end|>\n"}},
		{"brackets", talk, []string{" one</s>", " one one</s>"}},
		{"end of the text", talk, []string{"one<|end|>\n", "one one<|end|>\n</s>"}},
		{"thoughts of the last turn", talk, []string{"one<|end|>", "<think>\n</think>\none one<|end|>"}},
		{"opened thoughts", talk, []string{"one<|end|>", "one one<|end|>"}},
		{"tools", []chat.Message{talk[0], parsed(t, `{"role":"assistant","content":null,"tool_calls":[{"name":"f"}]}`), parsed(t, `{"role":"tool","content":"21"}`), talk[1]}, []string{"[f];", "one;"}},
	} {
		templates := must.Get(chat.Parse(tt.template, unmarked[tt.template]))(t)
		o := chat.Options{Special: map[string]string{"bos_token": "<s>", "eos_token": "</s>"}}
		plain := must.Get(templates.Render(tt.messages, o))(t)
		out, err := templates.RenderAssistant(tt.messages, o)
		if err != nil || out.Text != plain.Text {
			t.Errorf("%s: %v; the text is the one without spans: %t", tt.template, err, out.Text == plain.Text)
			continue
		}
		var got []string
		for _, s := range out.Generated {
			got = append(got, out.Text[s.Start:s.End])
		}
		expect.Equal(t, tt.want, got, fmt.Sprintf("%s of %d messages", tt.template, len(tt.messages)))
	}
}

func parsed(t *testing.T, text string) chat.Message {
	t.Helper()
	var m chat.Message
	must.Do(t, m.UnmarshalJSON([]byte(text)))
	return m
}

// If the template marks the assistant's text, the marks apply, and they match what is found without them.
func TestRenderAssistantMarked(t *testing.T) {
	marked := `{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	messages := []chat.Message{chat.NewMessage("user", "a"), chat.NewMessage("assistant", "one"), chat.NewMessage("user", "c"), chat.NewMessage("assistant", "two")}
	for name, of := range map[string]string{"marked": marked, "in a macro": "{% macro all() %}" + marked + "{% endmacro %}{{ all() }}"} {
		templates := must.Get(chat.Parse(name, of))(t)
		with := must.Get(templates.RenderAssistant(messages, chat.Options{}))(t)
		bare := must.Get(chat.Parse("bare", strings.NewReplacer("{% generation %}", "", "{% endgeneration %}", "").Replace(of)))(t)
		without, err := bare.RenderAssistant(messages, chat.Options{})
		diff := cmp.Diff(with, without)
		expect.True(t, diff == "" && err == nil, "%s: %v, %s", name, err, diff)
	}
	whole := must.Get(chat.Parse("header", strings.Replace(marked, "<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}", "{% if m.role == 'assistant' %}{% generation %}<assistant>", 1)))(t)
	out, err := whole.RenderAssistant(messages[:2], chat.Options{})
	expect.True(t, err == nil && len(out.Generated) == 1 && out.Text[out.Generated[0].Start:out.Generated[0].End] == "<assistant>one</s>", "%v, %v", out, err)
}

func TestRenderAssistantRefuses(t *testing.T) {
	messages := []chat.Message{chat.NewMessage("user", "a"), chat.NewMessage("assistant", "one"), chat.NewMessage("user", "c")}
	for text, want := range map[string]string{
		`{% for m in messages %}{{ m.content }}{% if loop.last %}.{% else %},{% endif %}{% endfor %}`:                             "message 2: the chat template writes this turn differently when other messages follow",
		`{% for m in messages %}{{ m.content }}{% endfor %}{% if messages | length == 1 %}{{ raise_exception('no') }}{% endif %}`: "message 2: rendering what comes before it",
		`{{ messages | length }}`: "message 2: the chat template writes",
	} {
		templates := must.Get(chat.Parse("template", text))(t)
		out, err := templates.RenderAssistant(messages, chat.Options{})
		expect.True(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, %v, want %q", text, out, err, want)
	}
}
