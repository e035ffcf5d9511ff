package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// row reads the columns of a record and remembers which it read.
type row struct {
	fields dataset.Object
	padded bool // see dataset.Record
	used   []string
}

func (r *row) get(name string) any {
	r.used = append(r.used, name)
	value, _ := r.fields.Get(name)
	if r.padded {
		value = withoutNulls(value)
	}
	return value
}

// first returns the first error.
func (r *row) first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// inColumn adds the column name to an error.
func inColumn(name string, err error) error {
	return fmt.Errorf("column %s: %w", words.Quote(name), err)
}

// content reads a non-empty text or conversation.
func (r *row) content(to *Content, name string) error {
	if err := r.answer(to, name); err != nil {
		return err
	}
	if !to.Conversational() && to.Text == "" {
		return fmt.Errorf("column %s is empty; fill it or remove the row", words.Quote(name))
	}
	return nil
}

// answer reads a text, which may be empty, or a conversation.
func (r *row) answer(to *Content, name string) (err error) {
	switch value := r.get(name).(type) {
	case string:
		if err := plain(value); err != nil {
			return inColumn(name, err)
		}
		to.Text = value
		return nil
	case []any, dataset.Object:
		if to.Messages, err = Messages(value, false); err != nil {
			return inColumn(name, err)
		}
		return nil
	case nil:
		return inColumn(name, ErrNull)
	default:
		return inColumn(name, fmt.Errorf("got %s, want a string or a list of messages", dataset.Kind(value)))
	}
}

// contents reads a prompt and its response.
func (r *row) contents(prompt *Content, promptName string, answer *Content, answerName string) error {
	return r.first(r.content(prompt, promptName), r.answer(answer, answerName), alike(prompt, promptName, answer, answerName))
}

// alike refuses a text next to a conversation.
func alike(a *Content, aName string, b *Content, bName string) error {
	if a.Conversational() == b.Conversational() {
		return nil
	}
	return fmt.Errorf("column %s is %s but column %s is %s; use the same kind for both", words.Quote(aName), form(a.Conversational()), words.Quote(bName), form(b.Conversational()))
}

// reply reads a string as the assistant's turn.
func (r *row) reply(to *Content, name string) error {
	value := r.get(name)
	text, ok := value.(string)
	if value == nil {
		return inColumn(name, ErrNull)
	}
	if !ok {
		return inColumn(name, fmt.Errorf("got %s, want a string", dataset.Kind(value)))
	}
	if err := plain(text); err != nil {
		return inColumn(name, err)
	}
	to.Messages = []Message{Turn("assistant", text)}
	return nil
}

// Turn is a message of a role and its text.
func Turn(role, text string) Message {
	return Message{{Name: "role", Value: role}, {Name: "content", Value: text}}
}

// text reads an optional text column.
func (r *row) text(name string) (string, error) {
	switch value := r.get(name).(type) {
	case nil:
		return "", nil
	case string:
		if err := plain(value); err != nil {
			return "", inColumn(name, err)
		}
		return value, nil
	default:
		return "", inColumn(name, fmt.Errorf("got %s, want a string", dataset.Kind(value)))
	}
}

// alpaca reads the prompt of an Alpaca row as LLaMA-Factory does: the system text, the turns of "history", then
// "instruction" and "input" joined by a newline.
func (r *row) alpaca(to *Content) error {
	system, err := r.text("system")
	if err != nil {
		return err
	}
	if system != "" {
		to.Messages = append(to.Messages, Turn("system", system))
	}
	history := r.get("history")
	pairs, ok := history.([]any)
	if !ok && history != nil {
		return inColumn("history", fmt.Errorf("got %s, want a list of pairs of strings", dataset.Kind(history)))
	}
	for _, pair := range pairs {
		pair, _ := pair.([]any)
		if len(pair) != 2 {
			return inColumn("history", errors.New("want a list of pairs of strings: question, answer"))
		}
		for i, role := range []string{"user", "assistant"} {
			text, ok := pair[i].(string)
			if !ok {
				return inColumn("history", fmt.Errorf("got %s, want a string", dataset.Kind(pair[i])))
			}
			if err := plain(text); err != nil {
				return inColumn("history", err)
			}
			to.Messages = append(to.Messages, Turn(role, text))
		}
	}
	instruction, err := r.text("instruction")
	if err != nil {
		return err
	}
	input, err := r.text("input")
	if err != nil {
		return err
	}
	query := strings.TrimSuffix(instruction+"\n"+input, "\n")
	if instruction == "" {
		query = input
	}
	if query == "" {
		return fmt.Errorf("column %s is empty; fill it or remove the row", words.Quote("instruction"))
	}
	to.Messages = append(to.Messages, Turn("user", query))
	return nil
}

// conversation reads a list of messages, after the optional column "system".
func (r *row) conversation(to *Content, name string) error {
	if err := r.content(to, name); err != nil {
		return err
	}
	if !to.Conversational() { // CSV and some Parquet files store the list as text
		value, err := dataset.Parse(to.Text)
		if _, ok := value.([]any); err != nil || !ok {
			return inColumn(name, errors.New("got a string, want a list of messages or its JSON"))
		}
		to.Text = ""
		if to.Messages, err = Messages(value, false); err != nil {
			return inColumn(name, err)
		}
	}
	system, err := r.text("system")
	if err == nil && system != "" {
		to.Messages = append([]Message{Turn("system", system)}, to.Messages...)
	}
	return err
}

// label reads true or false; CSV stores them as text.
func (r *row) label(to *bool, name string) (err error) {
	if *to, err = labelOf(r.get(name)); err != nil {
		return inColumn(name, err)
	}
	return nil
}

func labelOf(value any) (bool, error) {
	switch v := value.(type) {
	case bool:
		return v, nil
	case string:
		switch strings.ToLower(v) {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
	}
	return false, fmt.Errorf("got %s, want true or false", dataset.Kind(value))
}

// templateInputs reads what a chat template gets besides the messages. A column documents that is no list of objects is
// data for rewards.
func (r *row) templateInputs() (in envs.TemplateInputs, err error) {
	if in.Tools, err = r.list("tools"); err != nil {
		return in, err
	}
	if value, _ := r.fields.Get("documents"); isObjects(value) {
		if in.Documents, err = r.list("documents"); err != nil {
			return in, err
		}
	}
	switch value := r.get("chat_template_kwargs").(type) {
	case nil:
	case dataset.Object:
		in.TemplateArgs = value
	default:
		return in, inColumn("chat_template_kwargs", fmt.Errorf("got %s, want an object", dataset.Kind(value)))
	}
	return in, nil
}

// TemplateInputs reads the columns tools, documents and chat_template_kwargs of a row that another package reads.
func TemplateInputs(r dataset.Record) (envs.TemplateInputs, error) {
	return (&row{fields: r.Fields, padded: r.Padded}).templateInputs()
}

func isObjects(value any) bool {
	list, ok := value.([]any)
	return ok && !slices.ContainsFunc(list, func(one any) bool { _, object := one.(dataset.Object); return !object })
}

// list reads an optional list, or a list in JSON, as CSV stores it; nil if it is empty.
func (r *row) list(name string) ([]any, error) {
	value := r.get(name)
	if text, ok := value.(string); ok {
		value = nil
		if text != "" {
			var err error
			if value, err = dataset.Parse(text); err != nil {
				return nil, inColumn(name, err)
			}
		}
	}
	list, ok := value.([]any)
	switch {
	case value == nil, ok && len(list) == 0:
		return nil, nil
	case !ok:
		return nil, inColumn(name, fmt.Errorf("got %s, want a list", dataset.Kind(value)))
	}
	return list, nil
}

// plain refuses text that tokenizers would cut or change.
func plain(text string) error {
	if i := strings.IndexByte(text, 0); i >= 0 {
		return fmt.Errorf("NUL character at byte %d; remove it", i+1)
	}
	if !utf8.ValidString(text) {
		return errors.New("invalid UTF-8")
	}
	return nil
}
