package chat

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// readConversation reads a conversation; all of it is trained on.
func readConversation(name string) func(*row, *Example) error {
	return func(r *row, e *Example) error { return r.conversation(&e.Text, name) }
}

// readLastTurn reads a conversation whose last turn has a label.
func readLastTurn(name string) func(*row, *Example) error {
	return func(r *row, e *Example) error {
		var whole Content
		if err := r.first(r.conversation(&whole, name), r.label(&e.Label, "label")); err != nil {
			return err
		}
		last := len(whole.Messages) - 1
		if last == 0 || whole.Messages[last].Role() != "assistant" {
			return inColumn(name, errors.New("want a prompt, then the labelled assistant message"))
		}
		e.Prompt.Messages, e.Completion.Messages = whole.Messages[:last:last], whole.Messages[last:]
		return nil
	}
}

// readReplies reads a conversation and two continuations, as in LLaMA-Factory's ranking data.
func readReplies(name string) func(*row, *Example) error {
	return func(r *row, e *Example) error {
		return r.first(r.conversation(&e.Prompt, name),
			r.answer(&e.Chosen, "chosen"), alike(&e.Prompt, name, &e.Chosen, "chosen"),
			r.answer(&e.Rejected, "rejected"), alike(&e.Prompt, name, &e.Rejected, "rejected"))
	}
}

// readOpenAI reads {"input": {"messages", "tools"}, "preferred_output",
// "non_preferred_output"}.
func readOpenAI(r *row, e *Example) error {
	input, _ := r.get("input").(dataset.Object)
	inner := row{fields: input}
	tools, err := inner.list("tools")
	if err := inner.first(inner.conversation(&e.Prompt, "messages"), err); err != nil {
		return inColumn("input", err)
	}
	if tools != nil {
		e.Tools = tools
	}
	return r.first(r.answer(&e.Chosen, "preferred_output"), alike(&e.Prompt, "input", &e.Chosen, "preferred_output"),
		r.answer(&e.Rejected, "non_preferred_output"), alike(&e.Prompt, "input", &e.Rejected, "non_preferred_output"))
}

// readPreference reads an explicit prompt. If the prompt is a text but the responses are conversations, it only repeats
// their first message, as in UltraFeedback. The prompt is then implicit and the text becomes an extra column.
func readPreference(r *row, e *Example) error {
	if prompt, _ := r.fields.Get("prompt"); dataset.Kind(prompt) == "a string" {
		if chosen, _ := r.fields.Get("chosen"); dataset.Kind(chosen) != "a string" {
			return readImplicit(r, e)
		}
	}
	return r.first(r.contents(&e.Prompt, "prompt", &e.Chosen, "chosen"),
		r.answer(&e.Rejected, "rejected"), alike(&e.Chosen, "chosen", &e.Rejected, "rejected"))
}

// readImplicit takes the longest common prefix of chosen and rejected as the prompt, as TRL's extract_prompt does. The
// prefix is in messages or characters and leaves both responses non-empty. A trailing space of a text goes to the
// responses.
func readImplicit(r *row, e *Example) error {
	err := r.first(r.content(&e.Chosen, "chosen"), r.content(&e.Rejected, "rejected"), alike(&e.Chosen, "chosen", &e.Rejected, "rejected"))
	if err != nil {
		return err
	}
	if !e.Chosen.Conversational() {
		n := commonText(e.Chosen.Text, e.Rejected.Text)
		e.Prompt.Text, e.Chosen.Text, e.Rejected.Text = e.Chosen.Text[:n], e.Chosen.Text[n:], e.Rejected.Text[n:]
		return nil
	}
	chosen, rejected := e.Chosen.Messages, e.Rejected.Messages
	n := 0
	for n < min(len(chosen), len(rejected))-1 && dataset.Equal(dataset.Object(chosen[n]), dataset.Object(rejected[n])) {
		n++
	}
	if n == 0 {
		return fmt.Errorf("columns %s and %s start with different messages, so there is no common prompt; add a column %s",
			words.Quote("chosen"), words.Quote("rejected"), words.Quote("prompt"))
	}
	e.Prompt.Messages, e.Chosen.Messages, e.Rejected.Messages = chosen[:n:n], chosen[n:], rejected[n:]
	return nil
}

// commonText returns the length in bytes of the implicit prompt of two non-empty texts.
func commonText(chosen, rejected string) int {
	n := 0
	for {
		a, size := utf8.DecodeRuneInString(chosen[n:])
		b, other := utf8.DecodeRuneInString(rejected[n:])
		if a != b {
			break
		}
		if n+size == len(chosen) || n+other == len(rejected) {
			return n // leave the last character to the responses
		}
		n += size
	}
	if n > 0 && chosen[n-1] == ' ' {
		n--
	}
	return n
}

// readRanked reads a prompt and a list of responses, best first.
func readRanked(r *row, e *Example) error {
	if err := r.content(&e.Prompt, "prompt"); err != nil {
		return err
	}
	list, _ := r.get("ranked").([]any)
	if len(list) < 2 {
		return inColumn("ranked", fmt.Errorf("%d responses; want at least two, best first", len(list)))
	}
	for i, value := range list {
		one := row{fields: dataset.Object{{Name: "ranked", Value: value}}}
		var answer Content
		if err := one.first(one.answer(&answer, "ranked"), alike(&e.Prompt, "prompt", &answer, "ranked")); err != nil {
			return fmt.Errorf("response %d: %w", i+1, err)
		}
		e.Ranked = append(e.Ranked, answer)
	}
	return nil
}
