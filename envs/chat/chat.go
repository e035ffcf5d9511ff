// Package chat reads what language models train on: texts, prompts with
// completions, conversations and preferences, in the column layouts of TRL's
// data sets, of ShareGPT, of LLaMA-Factory's Alpaca and of OpenAI's preference
// files. SFT, reward models, DPO and the prompts of RL all read Examples.
//
// A value is used as it stands or refused with one line that names file, line
// and column. Nothing here knows tokenizers or templates.
package chat

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
)

// Format is what the examples of a data set hold. The names are TRL's.
type Format int

const (
	LanguageModelling Format = iota // Text
	PromptOnly                      // Prompt
	PromptCompletion                // Prompt, Completion
	Preference                      // Prompt, Chosen, Rejected
	Unpaired                        // Prompt, Completion, Label
	Ranking                         // Prompt, Ranked
)

func (f Format) String() string {
	return [...]string{"language modelling", "prompt only", "prompt and completion", "preference", "unpaired preference", "ranking"}[f]
}

// Message is one turn of a conversation: an object with "role", a text that is
// not empty, and "content": a text, a list of parts {"type": "text", "text": …},
// or null or nothing beside "tool_calls". Other fields are as the file has
// them, in its order, without those that are null: Arrow gives every message
// the fields of all.
type Message dataset.Object

// Role returns who speaks: system, user, assistant, tool, or another name that
// a template knows.
func (m Message) Role() string {
	value, _ := dataset.Object(m).Get("role")
	role, _ := value.(string)
	return role
}

// Text returns the content; the parts of a list are put together.
func (m Message) Text() string {
	value, _ := dataset.Object(m).Get("content")
	switch content := value.(type) {
	case string:
		return content
	case []any:
		var all strings.Builder
		for _, part := range content {
			text, _ := part.(dataset.Object).Get("text")
			all.WriteString(text.(string))
		}
		return all.String()
	}
	return ""
}

// Content is a text, or a conversation where Messages is not nil. It is valid
// UTF-8 without NUL.
type Content struct {
	Text     string
	Messages []Message
}

// Conversational reports whether c is a conversation, which a chat template
// turns into text.
func (c Content) Conversational() bool { return c.Messages != nil }

// Example is one row. Its Format says which contents it has; in one row, and in
// all rows of Examples, they are all texts or all conversations.
type Example struct {
	File   string // where it comes from, as dataset.Record has it
	Line   int
	Format Format

	Text       Content
	Prompt     Content // empty only where it is implicit in two texts
	Completion Content // may be an empty text, as may Chosen and Rejected
	Chosen     Content
	Rejected   Content
	Label      bool      // whether the completion is a good one
	Ranked     []Content // at least two, the best first

	Tools []any // descriptions of functions, for the template; nil for none
	// TemplateArgs are further variables of the template.
	TemplateArgs dataset.Object
	// Extra holds the other columns, for rewards.
	Extra dataset.Object
}

// Conversational reports whether the contents are conversations.
func (e Example) Conversational() bool {
	for _, c := range []Content{e.Text, e.Prompt, e.Completion, e.Chosen, e.Rejected} {
		if c.Conversational() {
			return true
		}
	}
	return false
}

// ErrNull says that a row has null where its text should be: a row that a data
// set's makers left empty.
var ErrNull = errors.New("null instead of a text or a conversation: fill it or remove the row")

// Examples reads the records as one of the accepted formats, any if none is
// named. The first record decides on the layout of the columns (see Detect);
// all others must have it. The first error ends the sequence, but for rows that
// are ErrNull, which come with File and Line and an error that says so: they can
// be counted and left out.
func Examples(records iter.Seq2[dataset.Record, error], accept ...Format) iter.Seq2[Example, error] {
	return func(yield func(Example, error) bool) {
		var layout *Layout
		first, conversational := true, false // of the rows that have something
		for r, err := range records {
			if err != nil {
				yield(Example{}, err)
				return
			}
			if layout == nil {
				if layout, err = Detect(r, accept...); err != nil {
					yield(Example{}, err)
					return
				}
			}
			e, err := layout.Example(r)
			if errors.Is(err, ErrNull) {
				if !yield(Example{File: r.File, Line: r.Line}, err) {
					return
				}
				continue
			}
			if err == nil && !first && e.Conversational() != conversational {
				err = fmt.Errorf("%s: %s, but the rows before are %s: divide the data set", r.Place(), form(e.Conversational()), form(conversational))
			}
			if err != nil {
				yield(Example{}, err)
				return
			}
			first, conversational = false, e.Conversational()
			if !yield(e, nil) {
				return
			}
		}
	}
}

// form names one of the two kinds of content.
func form(conversational bool) string {
	if conversational {
		return "a conversation"
	}
	return "plain text"
}
