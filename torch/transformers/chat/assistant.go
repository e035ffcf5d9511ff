package chat

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// RenderAssistant is Render with the assistant's text in Generated even if the template does not mark it. For such
// templates, a turn is what a conversation that ends with it adds to the conversation before it and the opening of the
// assistant's turn: the message and its end. It is an error if the template renders a turn differently once others
// follow, because its position is then unknown.
func (t *Templates) RenderAssistant(messages []Message, o Options) (jinja.Rendering, error) {
	whole, err := t.Render(messages, o)
	if err != nil || len(whole.Generated) > 0 && !whole.Unplaced {
		return whole, err
	}
	whole.Generated, whole.Unplaced = nil, false
	for i, m := range messages {
		if m.Role() != "assistant" {
			continue
		}
		span, err := t.turn(whole.Text, messages, i, o)
		if err != nil {
			return jinja.Rendering{}, fmt.Errorf("chat: message %d: %w", i+1, err)
		}
		// A second consecutive assistant message may continue the turn of the first.
		if n := len(whole.Generated); n > 0 && span.Start < whole.Generated[n-1].End {
			span.Start = min(whole.Generated[n-1].End, span.End)
		}
		whole.Generated = append(whole.Generated, span)
	}
	return whole, nil
}

// turn returns the position of message i, an assistant message, in the text of a conversation.
func (t *Templates) turn(text string, messages []Message, i int, o Options) (jinja.Span, error) {
	before, opened, err := t.opening(text, messages, i, o)
	if err != nil {
		return jinja.Span{}, fmt.Errorf("rendering what comes before it: %w", err)
	}
	o.AddGenerationPrompt = false
	with, err := t.Render(messages[:i+1], o)
	if err != nil {
		return jinja.Span{}, fmt.Errorf("rendering the conversation up to it: %w", err)
	}
	// The opening may start a thought, which the template drops from earlier turns.
	start := common(opened, text)
	if start < len(before) {
		return jinja.Span{}, errUnplaced
	}
	own := with.Text[common(with.Text, text[:start]):]
	if !strings.HasPrefix(text[start:], own) { // a text's last turn may end with the end of the text
		own = strings.TrimSuffix(own, o.Special["eos_token"])
	}
	for from := range own {
		// A thought that the template drops once other messages follow is at the turn's start.
		if strings.HasPrefix(text[start:], own[from:]) {
			if strings.TrimSpace(own[from:]) == "" {
				break
			}
			return jinja.Span{Start: start, End: start + len(own) - from}, nil
		}
	}
	return jinja.Span{}, errUnplaced
}

var errUnplaced = errors.New("the chat template writes this turn differently when other messages follow, so the assistant's text cannot be located; use a template that marks it with {% generation %}")

// opening renders the first n messages, and the same plus the opening of the assistant's next turn.
func (t *Templates) opening(text string, messages []Message, n int, o Options) (before, opened string, err error) {
	o.AddGenerationPrompt = false
	without, err := t.Render(messages[:max(n, 1)], o)
	if err != nil {
		return "", "", err
	}
	o.AddGenerationPrompt = true
	with, err := t.Render(messages[:max(n, 1)], o)
	if err != nil || n > 0 {
		return without.Text, with.Text, err
	}
	// The first turn is opened as the next one would be.
	opener := with.Text[common(with.Text, without.Text):]
	at := strings.Index(text, opener)
	if opener == "" || at < 0 {
		return "", "", nil
	}
	return text[:at], text[:at+len(opener)], nil
}

// common returns the length of the common prefix of two texts.
func common(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
