package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/daulet/tokenizers"
)

// ControlTokens are the tokens that steer a model: special ones, and added ones that the text of a chat template has.
func (t *Tokenizer) ControlTokens(template string) (tokens []string) {
	for _, a := range t.vocab.added {
		if a.Special || strings.Contains(template, a.Content) && strings.TrimSpace(a.Content) != "" {
			tokens = append(tokens, a.Content)
		}
	}
	return tokens
}

// IsControl reports whether token is a special token, whose text a decoder may skip.
func (t *Tokenizer) IsControl(token string) bool {
	return slices.ContainsFunc(t.vocab.added, func(a addedToken) bool { return a.Special && a.Content == token })
}

// EncodeInner returns the ids of a text within a longer one, without the space that some tokenizers put before a text. With
// plain special tokens in it are read as text; one that remains a token is an error.
func (t *Tokenizer) EncodeInner(text string, plain bool) ([]int32, error) {
	line, err := t.encodeInner("\n", plain)
	if err != nil {
		return nil, err
	}
	ids, err := t.encodeInner("\n"+text, plain)
	if err != nil {
		return nil, err
	}
	if len(ids) >= len(line) && slices.Equal(ids[:len(line)], line) {
		ids = ids[len(line):]
	} else if ids, err = t.encodeInner(text, plain); err != nil {
		return nil, err
	}
	if id, ok := t.TokenID(text); plain && ok && slices.Contains(ids, id) {
		return nil, fmt.Errorf("transformers: the tokenizer reads the text %.60q as a control token", text)
	}
	return ids, nil
}

func (t *Tokenizer) encodeInner(text string, plain bool) ([]int32, error) {
	if !plain {
		return t.EncodeRaw(text, false)
	}
	if err := check(text); err != nil {
		return nil, err
	}
	tk, err := t.plainly()
	if err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.tk == nil {
		return nil, errors.New("transformers: the tokenizer is closed")
	}
	return signed(tk.EncodeWithOptions(text, false).IDs), nil
}

// plainly is the tokenizer that reads special tokens as text.
func (t *Tokenizer) plainly() (*tokenizers.Tokenizer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tk == nil {
		return nil, errors.New("transformers: the tokenizer is closed")
	}
	if t.plain == nil {
		var err error
		if t.plain, err = build(t.prepared, tokenizers.WithEncodeSpecialTokens()); err != nil {
			return nil, err
		}
	}
	return t.plain, nil
}
