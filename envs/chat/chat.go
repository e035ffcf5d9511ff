// Package chat reads training data for language models: texts, prompts with completions, conversations and preferences. It
// accepts the column layouts of TRL, ShareGPT, LLaMA-Factory's Alpaca and OpenAI's preference files. SFT, reward models,
// DPO and RL prompts all read Examples.
//
// It uses a value unchanged or refuses it with a one-line error that names file, line and column. It knows no tokenizers
// and no templates.
package chat

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Format is what the examples of a data set contain. The names are TRL's.
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

// Message is one turn of a conversation. "role" is a non-empty string. "content" is a string or a list of parts {"type":
// "text", "text": …}; it may be null or missing if there are "tool_calls". Other fields keep the file's order.
// A field that is null is dropped; within fields nulls stay, unless the file is Parquet or Arrow, which give every struct
// all fields.
type Message dataset.Object

// Role returns the speaker: system, user, assistant, tool, or another name that the template knows.
func (m Message) Role() string {
	value, _ := dataset.Object(m).Get("role")
	role, _ := value.(string)
	return role
}

// Text returns the content, with the parts of a list joined by newlines.
func (m Message) Text() string {
	value, _ := dataset.Object(m).Get("content")
	if text, ok := value.(string); ok {
		return text
	}
	return strings.Join(m.Parts(), "\n")
}

// Parts returns the texts of a content that is a list, nil if it is not.
func (m Message) Parts() []string {
	value, _ := dataset.Object(m).Get("content")
	list, ok := value.([]any)
	if !ok {
		return nil
	}
	texts := make([]string, len(list))
	for i, part := range list {
		text, _ := part.(dataset.Object).Get("text")
		texts[i], _ = text.(string)
	}
	return texts
}

// Content is a text, or a conversation if Messages is not nil. It is valid UTF-8 without NUL.
type Content struct {
	Text     string
	Messages []Message
}

// Conversational reports whether c is a conversation, which needs a chat template.
func (c Content) Conversational() bool { return c.Messages != nil }

// Example is one row. Its Format says which contents are set. All contents of all Examples are either texts or
// conversations, never both.
type Example struct {
	File   string // source, as in dataset.Record
	Line   int
	Format Format

	Text       Content
	Prompt     Content // empty only if implicit in two texts
	Completion Content // may be an empty text, as may Chosen and Rejected
	Chosen     Content
	Rejected   Content
	Label      bool      // whether the completion is good
	Ranked     []Content // at least two, best first

	envs.TemplateInputs
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

// ErrNull means that a row has null instead of text: the authors of the data set left it empty.
var ErrNull = errors.New("null instead of a text or a conversation; fill it or remove the row")

// Examples reads the records in one of the accepted formats, or in any format if accept is empty. The first record decides
// the column layout (see Detect); all others must match it. A row that cannot be used carries File, Line and a
// *dataset.RowError, so that the caller can count and skip it; ErrNull is one. Any other error ends the sequence.
func Examples(records iter.Seq2[dataset.Record, error], accept ...Format) iter.Seq2[Example, error] {
	return func(yield func(Example, error) bool) {
		var layout *Layout
		first, conversational := true, false // of the non-null rows so far
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
			if err == nil && !first && e.Conversational() != conversational {
				err = fmt.Errorf("%s: the row is %s, but earlier rows are %s; split the data set", r.Place(), form(e.Conversational()), form(conversational))
			}
			if err != nil {
				if !yield(Example{File: r.File, Line: r.Line}, &dataset.RowError{Err: err}) {
					return
				}
				continue
			}
			first, conversational = false, e.Conversational()
			if !yield(e, nil) {
				return
			}
		}
	}
}

// form names the kind of content.
func form(conversational bool) string {
	if conversational {
		return "a conversation"
	}
	return "plain text"
}
