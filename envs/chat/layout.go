package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// Layout maps a set of columns to a format.
type Layout struct {
	Format  Format
	Columns []string // all required; extra columns are allowed
	// fits checks the values of the first record if the names alone are ambiguous; nil means they are not.
	fits func(dataset.Object) bool
	read func(*row, *Example) error
}

// layouts are all known layouts. The first match wins, so a superset of columns comes before its subsets.
var layouts = []*Layout{
	{Unpaired, []string{"prompt", "completion", "label"}, hasLabel("label"), func(r *row, e *Example) error {
		return r.first(r.contents(&e.Prompt, "prompt", &e.Completion, "completion"), r.label(&e.Label, "label"))
	}},
	{Unpaired, []string{"messages", "label"}, hasLabel("label"), readLastTurn("messages")},
	{Unpaired, []string{"conversations", "label"}, hasLabel("label"), readLastTurn("conversations")},
	{Unpaired, []string{"instruction", "output", "kto_tag"}, hasLabel("kto_tag"), func(r *row, e *Example) error {
		return r.first(r.alpaca(&e.Prompt), r.reply(&e.Completion, "output"), r.label(&e.Label, "kto_tag"))
	}},
	{Ranking, []string{"prompt", "ranked"}, hasList("ranked"), readRanked},
	{Preference, []string{"input", "preferred_output", "non_preferred_output"}, hasMessages("input"), readOpenAI},
	{Preference, []string{"conversations", "chosen", "rejected"}, nil, readReplies("conversations")},
	{Preference, []string{"messages", "chosen", "rejected"}, hasList("messages"), readReplies("messages")},
	{Preference, []string{"instruction", "chosen", "rejected"}, nil, func(r *row, e *Example) error {
		return r.first(r.alpaca(&e.Prompt), r.reply(&e.Chosen, "chosen"), r.reply(&e.Rejected, "rejected"))
	}},
	{Preference, []string{"prompt", "chosen", "rejected"}, nil, readPreference},
	{Preference, []string{"chosen", "rejected"}, nil, readImplicit},
	// Demonstrations, with completions that `rltrain generate` sampled for their prompts.
	{Preference, []string{"prompt", "chosen", "completion"}, nil, func(r *row, e *Example) error {
		return r.first(r.contents(&e.Prompt, "prompt", &e.Chosen, "chosen"), r.answer(&e.Rejected, "completion"), alike(&e.Chosen, "chosen", &e.Rejected, "completion"))
	}},
	{Preference, []string{"messages", "chosen", "completion"}, hasList("messages"), func(r *row, e *Example) error {
		return r.first(r.conversation(&e.Prompt, "messages"), r.reply(&e.Chosen, "chosen"), r.reply(&e.Rejected, "completion"))
	}},
	{PromptCompletion, []string{"prompt", "completion"}, nil, func(r *row, e *Example) error {
		return r.contents(&e.Prompt, "prompt", &e.Completion, "completion")
	}},
	{PromptCompletion, []string{"instruction", "output"}, nil, func(r *row, e *Example) error {
		return r.first(r.alpaca(&e.Prompt), r.reply(&e.Completion, "output"))
	}},
	{LanguageModelling, []string{"messages"}, nil, readConversation("messages")},
	{LanguageModelling, []string{"conversations"}, nil, readConversation("conversations")},
	{LanguageModelling, []string{"text"}, nil, func(r *row, e *Example) error { return r.content(&e.Text, "text") }},
	{PromptOnly, []string{"prompt"}, nil, func(r *row, e *Example) error { return r.content(&e.Prompt, "prompt") }},
	{PromptOnly, []string{"messages"}, nil, func(r *row, e *Example) error { return r.conversation(&e.Prompt, "messages") }},
	{PromptOnly, []string{"instruction"}, nil, func(r *row, e *Example) error { return r.alpaca(&e.Prompt) }},
}

// String names the columns: "prompt + completion".
func (l *Layout) String() string { return strings.Join(l.Columns, " + ") }

// Detect finds the layout of a data set from its first record, among the accepted formats (all if accept is empty). The
// most specific match wins: unpaired preferences, preferences, prompts with completions, language modelling, prompts. The
// error lists the columns found and the layouts accepted.
func Detect(r dataset.Record, accept ...Format) (*Layout, error) {
	var known []string
	for _, l := range layouts {
		if len(accept) > 0 && !slices.Contains(accept, l.Format) {
			continue
		}
		known = append(known, l.String())
		if l.fit(r.Fields) {
			return l, nil
		}
	}
	if err := whyNot(r, accept); err != nil {
		return nil, err
	}
	columns := "no columns"
	if len(r.Fields) > 0 {
		columns = "columns are " + words.List(r.Fields.Names())
	}
	what := "text, conversations or preferences"
	if len(accept) > 0 {
		names := make([]string, len(accept))
		for i, f := range accept {
			names[i] = f.String()
		}
		what = "a data set with " + strings.Join(names, " or ")
	}
	return nil, fmt.Errorf("%s: not %s: %s; want %s", r.Place(), what, columns, strings.Join(known, ", or "))
}

func (l *Layout) fit(fields dataset.Object) bool {
	return l.named(fields) && (l.fits == nil || l.fits(fields))
}

// named reports whether all columns are present.
func (l *Layout) named(fields dataset.Object) bool {
	for _, name := range l.Columns {
		if _, ok := fields.Get(name); !ok {
			return false
		}
	}
	return true
}

// whyNot explains why a record with all columns of an accepted layout fits none.
func whyNot(r dataset.Record, accept []Format) error {
	for _, l := range layouts {
		if !slices.Contains(accept, l.Format) || !l.named(r.Fields) {
			continue
		}
		if _, err := l.Example(r); err != nil && !errors.Is(err, ErrNull) {
			return err
		}
	}
	return nil
}

// Example reads one record in this layout.
func (l *Layout) Example(r dataset.Record) (Example, error) {
	e := Example{File: r.File, Line: r.Line, Format: l.Format}
	for _, name := range l.Columns {
		if _, ok := r.Fields.Get(name); !ok {
			columns := "the row has no columns"
			if len(r.Fields) > 0 {
				columns = "its columns are " + words.List(r.Fields.Names())
			}
			return Example{}, fmt.Errorf("%s: column %s is missing (the first row has it); %s", r.Place(), words.Quote(name), columns)
		}
	}
	in := row{fields: r.Fields, padded: r.Padded}
	inputs, err := in.templateInputs()
	e.TemplateInputs = inputs
	if err := in.first(l.read(&in, &e), err); err != nil {
		return Example{}, fmt.Errorf("%s: %w", r.Place(), err)
	}
	for _, f := range r.Fields {
		if !slices.Contains(in.used, f.Name) {
			e.Extra = append(e.Extra, f)
		}
	}
	return e, nil
}

// hasLabel wants a column of true/false labels. Class names and numbers belong to other kinds of data.
func hasLabel(name string) func(dataset.Object) bool {
	return func(fields dataset.Object) bool {
		value, _ := fields.Get(name)
		_, err := labelOf(value)
		return err == nil
	}
}

// hasList wants a column of lists.
func hasList(name string) func(dataset.Object) bool {
	return func(fields dataset.Object) bool {
		value, _ := fields.Get(name)
		_, ok := value.([]any)
		return ok
	}
}

// hasMessages wants a column of objects with "messages".
func hasMessages(name string) func(dataset.Object) bool {
	return func(fields dataset.Object) bool {
		value, _ := fields.Get(name)
		object, _ := value.(dataset.Object)
		_, ok := object.Get("messages")
		return ok
	}
}
