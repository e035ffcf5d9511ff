package policy

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/torch"
	template "github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// marked is a text with the tokens that a reward model scores, in ascending order.
type marked struct {
	ids  []int32
	rows []int
}

// Steps are the scores of completions at the ends of their steps, bytes of their Generated, which separator ends. An entry of errs
// says why a completion has none. A language model reads each completion once: the score of a step is that of its last token, or of
// the separator after it if the model is a process reward model of TRL. Other models read the text up to the end of each step.
func (m *RewardModel) Steps(ctx context.Context, completions []envs.Completion, ends [][]int, separator string) (scores [][]float64, errs []error) {
	scores, errs = make([][]float64, len(completions)), make([]error, len(completions))
	var texts []marked
	var of []int // completion of each text
	for i, c := range completions {
		marks, err := m.mark(c, ends[i], separator)
		if err != nil {
			errs[i] = err
			continue
		}
		for _, one := range marks {
			texts, of = append(texts, one), append(of, i)
		}
	}
	found, err := m.markedScores(ctx, texts)
	for k, i := range of {
		if err != nil {
			errs[i] = err
			continue
		}
		scores[i] = append(scores[i], found[k]...)
	}
	return scores, errs
}

// mark encodes a completion with its steps: one text, or one for each step.
func (m *RewardModel) mark(c envs.Completion, ends []int, separator string) ([]marked, error) {
	switch {
	case m.Pooling == PoolStep:
		one, err := m.markSeparated(c, ends, separator)
		return []marked{one}, err
	case m.Pooling == PoolLast:
		if one, ok, err := m.markWhole(c, ends); ok || err != nil {
			return []marked{one}, err
		}
	}
	texts := make([]marked, len(ends))
	before := strings.TrimSuffix(c.Text, c.Generated)
	for k, end := range ends {
		part := c
		if end < len(c.Generated) {
			part.Text = before + trimStep(c.Generated[:end])
		}
		ids, err := m.Encode(Answered(part))
		if err != nil {
			return nil, fmt.Errorf("step %d of %d: %w", k+1, len(ends), err)
		}
		texts[k] = marked{ids, []int{len(ids) - 1}}
	}
	return texts, nil
}

func trimStep(text string) string { return strings.TrimRightFunc(text, unicode.IsSpace) }

// markSeparated encodes a completion as TRL does for its process reward models: the prompt without a chat template after the token that
// begins a text, and each step with the separator. The last token of a separator is scored.
func (m *RewardModel) markSeparated(c envs.Completion, ends []int, separator string) (one marked, err error) {
	prompt := c.Observation.Text
	for i, message := range c.Observation.Messages {
		if i > 0 {
			prompt += "\n\n"
		}
		prompt += message.Content
	}
	if bos, ok := m.Tokenizer.SpecialID("bos_token"); ok {
		one.ids = append(one.ids, bos)
	}
	add := func(text string) {
		var ids []int32
		if err == nil {
			ids, err = m.Tokenizer.EncodeRaw(text, false)
			one.ids = append(one.ids, ids...)
		}
	}
	add(prompt + strings.TrimSuffix(c.Text, c.Generated))
	from := 0
	for _, end := range ends {
		add(trimStep(strings.TrimSuffix(trimStep(c.Generated[from:end]), separator)))
		add(separator)
		one.rows, from = append(one.rows, len(one.ids)-1), end
	}
	if n := len(one.ids); err == nil && n > m.MaxLength {
		err = fmt.Errorf("prompt and completion are %w than the %d tokens that the reward model reads", errLonger, m.MaxLength)
	}
	return one, err
}

// markWhole encodes a completion as Encode does, and finds the last tokens of its steps; that of the last step is the one that ends the
// text. ok is false if the chat template changes the completion, so that its steps have no place.
func (m *RewardModel) markWhole(c envs.Completion, ends []int) (one marked, ok bool, err error) {
	e := Answered(c)
	if one.ids, err = m.Encode(e); err != nil {
		return one, false, err
	}
	text, content, opening := e.Prompt.Text+e.Completion.Text, e.Completion.Text, len(m.Tokenizer.Opening())
	if e.Conversational() {
		rendered, err := m.lm.render(slices.Concat(e.Prompt.Messages, e.Completion.Messages), e.TemplateInputs, false, (*template.Templates).Render)
		if err != nil {
			return one, false, err
		}
		text, content, opening = rendered.Text, e.Completion.Messages[0].Text(), 0
	}
	spans, at, err := m.place(text, content)
	if err != nil || at < 0 {
		return one, false, err
	}
	at += len(content) - len(c.Generated)
	for _, end := range ends[:len(ends)-1] {
		bytes := at + len(trimStep(c.Generated[:end]))
		n, _ := slices.BinarySearchFunc(spans, bytes, func(s jinja.Span, bytes int) int { return s.Start - bytes })
		one.rows = append(one.rows, min(opening+max(0, n-1), len(one.ids)-1))
	}
	one.rows = append(one.rows, len(one.ids)-1)
	return one, true, nil
}

// place finds the last place of a part of a text, -1 if it is not there, and the spans of the text's tokens.
func (m *RewardModel) place(text, part string) (spans []jinja.Span, at int, err error) {
	if at = strings.LastIndex(text, part); at < 0 {
		return nil, at, nil
	}
	_, spans, err = m.Tokenizer.EncodeStart(text, m.MaxLength+1)
	return spans, at, err
}

// markedScores are the scores of the marked tokens of texts.
func (m *RewardModel) markedScores(ctx context.Context, texts []marked) (all [][]float64, err error) {
	err = m.inParts(ctx, len(texts), func(i int) int { return len(texts[i].ids) }, func(s *torch.Scope, from, to int) error {
		part := texts[from:to]
		found := s.Read(m.scoresOf(s, m.logits(s, part), rowsOf(part)))
		for _, one := range part {
			scores := make([]float64, len(one.rows))
			for k := range scores {
				if scores[k] = float64(found[k]); math.IsNaN(scores[k]) || math.IsInf(scores[k], 0) {
					return fmt.Errorf("a score is %v", scores[k])
				}
			}
			all, found = append(all, scores), found[len(scores):]
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scoring with %s: %w", filepath.Base(m.name), err)
	}
	return all, nil
}

func rowsOf(texts []marked) (n int) {
	for _, one := range texts {
		n += len(one.rows)
	}
	return n
}

// logits are those of the marked tokens of texts, in order.
func (m *RewardModel) logits(s *torch.Scope, texts []marked) torch.Tensor {
	sequences, rows, begin := make([][]int32, len(texts)), []int64(nil), 0
	for i, one := range texts {
		sequences[i] = one.ids
		for _, row := range one.rows {
			rows = append(rows, int64(begin+row))
		}
		begin += len(one.ids)
	}
	how := torch.Pass{Adapter: true}
	if m.Pooling == PoolLast || m.Pooling == PoolStep {
		return m.head.logits(s, m.lm.states(s, sequences, rows, how))
	}
	_, logits := m.read(s, sequences, how)
	return logits
}
