package prompts

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// prompt is a row of a file.
type prompt struct {
	place    string // in errors
	text     string // the prompt, or
	messages []envs.Message
	inputs   envs.TemplateInputs // of messages, or of a text that becomes one
	answer   string
	solution string
	kind     string
	rank     float64 // of the curriculum
	row      dataset.Object
}

// key identifies duplicates.
func (e prompt) key() string {
	var b strings.Builder
	b.WriteString(e.text)
	for _, m := range e.messages {
		b.WriteString(m.Role + ": " + m.Content + "\n")
		if m.Fields != nil {
			fmt.Fprintln(&b, m.Fields)
		}
	}
	if in := e.inputs; in.Tools != nil || in.Documents != nil || in.TemplateArgs != nil {
		fmt.Fprintln(&b, in)
	}
	return b.String()
}

// columns are the columns of a file.
type columns struct {
	answer, kind string // "" if the rows have none
	solution     string
	rank         string // "" without a curriculum
	asked        string // the column of the prompt
}

// solutionColumns are the columns that may hold a demonstration.
var solutionColumns = []string{"solution", "completion"}

// usualAnswer is the answer column that a file may lack.
const usualAnswer = "answer"

// columnsOf finds the columns of a file from its first row.
func (o *options) columnsOf(r dataset.Record) (columns, error) {
	has := func(name string) bool { _, ok := r.Fields.Get(name); return ok }
	c := columns{answer: o.AnswerColumn, kind: o.KindColumn, asked: "prompt"}
	list := "its columns are " + words.List(r.Fields.Names())
	switch {
	case o.PromptColumn != "" && !has(o.PromptColumn):
		return c, envs.OptionErrorf("prompt_column", "%s has no column %s; %s", r.File, words.Quote(o.PromptColumn), list)
	case o.PromptColumn != "":
		c.asked = o.PromptColumn
	case !has("prompt"):
		c.asked = "messages"
	}
	if !has(c.asked) {
		return c, fmt.Errorf("%s: no column prompt or messages; %s", r.Place(), list)
	}
	for _, name := range solutionColumns {
		if c.solution == "" && has(name) {
			c.solution = name
		}
	}
	switch {
	case has(c.answer):
	case c.answer != usualAnswer:
		return c, envs.OptionErrorf("answer_column", "%s has no column %s; %s", r.File, words.Quote(c.answer), list)
	case c.solution == solutionColumns[0]:
		c.answer = c.solution // as TRL's rewards of accuracy read it
	default:
		c.answer = ""
	}
	if c.kind != "" && !has(c.kind) {
		return c, envs.OptionErrorf("kind_column", "%s has no column %s; %s", r.File, words.Quote(c.kind), list)
	}
	if c.rank = o.Curriculum; c.rank != "" && !has(c.rank) {
		return c, envs.OptionErrorf("curriculum_column", "%s has no column %s; %s", r.File, words.Quote(c.rank), list)
	}
	return c, nil
}

// read reads the prompts of files; errors call the files name. Rows that cannot be used are added to faults.
func (o *options) read(reader dataset.Reader, faults *dataset.Faults, name string, files ...string) ([]prompt, columns, error) {
	return o.readAll(reader.Records(files...), faults, name)
}

// readAll reads the prompts of records.
func (o *options) readAll(records iter.Seq2[dataset.Record, error], faults *dataset.Faults, name string) ([]prompt, columns, error) {
	var all []prompt
	var c columns
	first := true
	for r, err := range records {
		if err == nil && first {
			first = false
			c, err = o.columnsOf(r)
		}
		if err != nil {
			return nil, c, err
		}
		e, err := c.prompt(r)
		if err != nil {
			if err := faults.Add(fmt.Errorf("%s: %w", r.Place(), err)); err != nil {
				return nil, c, err
			}
			continue
		}
		all = append(all, e)
	}
	if err := faults.Err(); err != nil {
		return nil, c, err
	}
	if all == nil {
		return nil, c, fmt.Errorf("%s: no rows", name)
	}
	return all, c, nil
}

// prompt reads a row.
func (c columns) prompt(r dataset.Record) (e prompt, err error) {
	e = prompt{place: r.Place(), row: r.Fields}
	if e.inputs, err = chat.TemplateInputs(r); err != nil {
		return e, err
	}
	switch value, _ := r.Fields.Get(c.asked); value.(type) {
	case []any, dataset.Object:
		e.messages, err = messages(c.asked, value, r.Padded)
	default:
		if c.asked == "messages" {
			e.messages, err = messages(c.asked, value, r.Padded)
		} else {
			e.text, err = r.Fields.Text(c.asked)
		}
	}
	for _, column := range []struct {
		name string
		into *string
	}{{c.answer, &e.answer}, {c.kind, &e.kind}, {c.solution, &e.solution}} {
		if column.name != "" && err == nil {
			*column.into, err = r.Fields.Text(column.name)
		}
	}
	e.answer = right(e.answer)
	if c.rank != "" && err == nil {
		e.rank, err = r.Fields.Number(c.rank)
	}
	return e, err
}

// messages reads a conversation that does not end with the assistant.
func messages(column string, value any, padded bool) ([]envs.Message, error) {
	inColumn := func(err error) error { return fmt.Errorf("column %s: %w", words.Quote(column), err) }
	if value == nil {
		return nil, inColumn(errors.New("null or missing; fill it or remove the row"))
	}
	if list, ok := value.(string); ok { // CSV stores it as text
		parsed, err := dataset.Parse(list)
		if err != nil {
			return nil, inColumn(fmt.Errorf("want a list of messages or its JSON: %w", err))
		}
		value = parsed
	}
	read, err := chat.Messages(value, padded)
	if err != nil {
		return nil, inColumn(err)
	}
	if last := read[len(read)-1]; last.Role() == envs.RoleAssistant {
		return nil, inColumn(errors.New("the last message is the assistant's, but the policy generates that one; remove it or move it to a column solution"))
	}
	return chat.Said(read), nil
}
