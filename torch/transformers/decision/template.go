package decision

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// generalTemplate is what general writes, as a template of state and question.
const generalTemplate = `{%- macro text(v) -%}{{ "" if v is none else v if v is string else v|tojson }}{%- endmacro -%}
{%- set ns = namespace(lines=[]) -%}
{%- if text(question.instructions) -%}{%- set ns.lines = ns.lines + [text(question.instructions)] -%}{%- endif -%}
{%- for option in question.options -%}
{%- set label = question.labels[loop.index0] -%}
{%- set described = text(question.descriptions[loop.index0]) -%}
{%- if question.type == "noul" -%}
{%- if described or question.labels|join(" ") != "Yes No" -%}{%- set ns.lines = ns.lines + [label ~ ": " ~ (described or option)] -%}{%- endif -%}
{%- elif question.type == "choice" -%}
{%- set ns.lines = ns.lines + [label ~ ". " ~ (option ~ ": " ~ described if described else option)] -%}
{%- else -%}
{%- set ns.lines = ns.lines + [label ~ ". " ~ described] -%}
{%- endif -%}
{%- endfor -%}
{%- set sign = "letter" if question.labels|join("") == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:question.labels|length] else "label" -%}
{%- set what = "option" if question.type == "choice" else "level" -%}
{%- set first = question.labels[0] -%}
{%- set last = question.labels[-1] -%}
{{ text(state) ~ "\n\n" ~ ns.lines|join("\n") ~ "\n" }}
{%- if question.type == "noul" -%}
{{ "Answer " ~ first ~ " or " ~ last ~ " only." }}
{%- else -%}
{{ "Answer with the " ~ sign ~ " of the " ~ what ~ " that fits best (" ~ first ~ " to " ~ last ~ ") only." }}
{%- endif -%}
`

// HasTemplate tells whether the model has a decision template.
func (c *Config) HasTemplate() bool { return c.template != nil }

// SetTemplate gives the model a decision template.
func (c *Config) SetTemplate(text string) (err error) {
	c.together = regexp.MustCompile(`\bquestions\b`).MatchString(text)
	c.template, err = chat.Parse(TemplateFile, text)
	return err
}

// placeholder is the content of a message while a chat template is rendered.
const placeholder = "\U000f0002"

// Template is the model's decision template, or else one that asks as the general prompt does.
func (a *Asker) Template() (string, error) {
	if a.template != nil {
		return string(a.template.Default()), nil
	}
	r := a.renderer
	rendered, err := r.Chat.Render([]chat.Message{chat.NewMessage("user", placeholder)}, chat.Options{
		AddGenerationPrompt: true, Special: r.Special, Now: r.Now, Variables: map[string]jinja.Value{"enable_thinking": false},
	})
	if err != nil {
		return "", err
	}
	before, after, found := strings.Cut(rendered.Text, placeholder)
	if !found {
		return "", fmt.Errorf("the chat template does not show the user's message")
	}
	return literal(before) + generalTemplate + literal(after), nil
}

// literal is a text in a template.
func literal(text string) string {
	if text == "" {
		return ""
	}
	line, _ := files.EncodeLine(text) // a string has no errors
	return "{{ " + string(line) + " }}"
}

// Request is the question as a request has it.
func (q Question) Request() *jinja.Dict {
	d := jinja.NewDict()
	d.Set("type", q.Type)
	if q.Instructions != nil {
		d.Set("instructions", q.Instructions)
	}
	if q.Type == Score {
		d.Set("criteria", &jinja.List{Items: q.Descriptions})
		return d
	}
	criteria := jinja.NewDict()
	for i, option := range q.Options {
		criteria.Set(option, q.Descriptions[i])
	}
	d.Set("criteria", criteria)
	return d
}
