package policy

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
	template "github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// A Sequence is a stream of tokens. The loss reads some of them.
type Sequence struct {
	IDs []int32
	// Labels says of each token whether it is trained on; the first never is.
	Labels []bool
	Rank   float64 // of EncodeOptions.Curriculum
	// shortened means that the prompt was rendered without the opening of a thought; see promptWithin.
	shortened bool
}

func (q Sequence) labels() int {
	n := 0
	for _, label := range q.Labels {
		if label {
			n++
		}
	}
	return n
}

// Samples are the sequences for SFT: the labels are the actions. Their Prompt is their index.
func Samples(sequences []Sequence) []*rl.Sample {
	samples := make([]*rl.Sample, len(sequences))
	for i, q := range sequences {
		x := &rl.Sample{Tokens: q.IDs, Prompt: i}
		for t, label := range q.Labels {
			if label {
				// What comes before a token predicts it.
				x.Rows, x.Actions = append(x.Rows, t-1), append(x.Actions, q.IDs[t])
			}
		}
		samples[i] = x
	}
	return samples
}

// TokenExamples are the sequences of a data set.
type TokenExamples struct {
	Sequences []Sequence
	Cut       int            // examples longer than the limit
	Dropped   int            // examples without a label after cutting
	Null      int            // rows without a text
	Empty     int            // examples whose response is empty
	Masked    int            // conversations of which the assistant's messages alone are trained on
	Bad       dataset.Faults // rows that cannot be encoded
	Shortened int            // prompts without the thought that the template opens; see promptWithin
	Untold    int            // examples with tools that the template does not describe
}

// Join adds the examples of another data set.
func (x *TokenExamples) Join(y TokenExamples) {
	x.Sequences = append(x.Sequences, y.Sequences...)
	x.Cut, x.Dropped, x.Null, x.Empty = x.Cut+y.Cut, x.Dropped+y.Dropped, x.Null+y.Null, x.Empty+y.Empty
	x.Masked, x.Shortened, x.Untold = x.Masked+y.Masked, x.Shortened+y.Shortened, x.Untold+y.Untold
	x.Bad.Join(y.Bad)
}

// EncodeOptions say which tokens of an example are trained on.
type EncodeOptions struct {
	SkipBad        bool   // drop rows that cannot be encoded; otherwise they are an error
	MaxLength      int    // cut examples after this many tokens; 0 = the model's positions
	CompletionOnly bool   // train on the completion, not on the prompt
	AssistantOnly  bool   // train on what the template marks as the assistant's, not on the other messages
	Curriculum     string // column with the rank of an example; "" = none
}

// Encode turns texts, conversations, and prompts with completions into sequences. They end with the token that ends a text,
// which is a label. Errors name the file and line of an example that cannot be encoded. It is an error if no example has a
// token to train on.
func (p *CausalLM) Encode(examples iter.Seq2[chat.Example, error], o EncodeOptions) (TokenExamples, error) {
	o.MaxLength = p.LimitLength(o.MaxLength)
	var out TokenExamples
	var err error
	out.Bad.Skip = o.SkipBad
	encode := func(e chat.Example) (Sequence, error) {
		q, err := p.encodeExample(e, o)
		if err == nil && o.Curriculum != "" {
			q.Rank, err = e.Extra.Number(o.Curriculum)
		}
		return q, err
	}
	tools := sync.OnceValue(p.ReadsTools)
	out.Null, err = encodeAll(&out.Bad, examples, encode, func(e chat.Example, q Sequence) {
		out.add(e, q, o)
		if e.Tools != nil && !tools() {
			out.Untold++
		}
	})
	if err == nil && len(out.Sequences) == 0 && out.Dropped > 0 {
		err = fmt.Errorf("none of %d examples has a token to train on within %d tokens; raise max_length", out.Dropped, o.MaxLength)
	}
	return out, err
}

// encodedAtOnce is how many examples all processors encode together.
const encodedAtOnce = 512

// encodeAll encodes examples on all processors, and passes them to take in their order. Rows that cannot be read or encoded
// are added to bad. It counts the rows whose text is null.
func encodeAll[T any](bad *dataset.Faults, examples iter.Seq2[chat.Example, error], encode func(e chat.Example) (T, error), take func(e chat.Example, encoded T)) (null int, err error) {
	batch := make([]chat.Example, 0, encodedAtOnce)
	flush := func() error {
		encoded, errs := make([]T, len(batch)), make([]error, len(batch))
		onAllProcessors(len(batch), func(i int) { encoded[i], errs[i] = encode(batch[i]) })
		for i, e := range batch {
			if errs[i] == nil {
				take(e, encoded[i])
			} else if errors.Is(errs[i], template.ErrNone) { // not the row's fault
				return rowError(e, errs[i])
			} else if err := bad.Add(rowError(e, errs[i])); err != nil {
				return err
			}
		}
		batch = batch[:0]
		return nil
	}
	for e, err := range examples {
		if errors.Is(err, chat.ErrNull) {
			null++
			continue
		}
		if _, ok := errors.AsType[*dataset.RowError](err); ok {
			if err := bad.Add(err); err != nil {
				return null, err
			}
			continue
		}
		if err != nil {
			return null, err
		}
		if batch = append(batch, e); len(batch) == encodedAtOnce {
			if err := flush(); err != nil {
				return null, err
			}
		}
	}
	if err := flush(); err != nil {
		return null, err
	}
	return null, bad.Err()
}

// add adds the sequence of an example, cut at the limit.
func (t *TokenExamples) add(e chat.Example, q Sequence, o EncodeOptions) {
	if len(q.IDs) > o.MaxLength {
		q.IDs, q.Labels = q.IDs[:o.MaxLength], q.Labels[:o.MaxLength]
		t.Cut++
	}
	if o.AssistantOnly && e.Text.Conversational() {
		t.Masked++
	}
	if q.shortened {
		t.Shortened++
	}
	if q.labels() == 0 {
		t.Dropped++
		return
	}
	if emptyResponse(e) {
		t.Empty++
	}
	t.Sequences = append(t.Sequences, q)
}

// emptyResponse tells whether an example teaches to say nothing.
func emptyResponse(e chat.Example) bool {
	if e.Format == chat.PromptCompletion && !e.Completion.Conversational() {
		return strings.TrimSpace(e.Completion.Text) == ""
	}
	return slices.ContainsFunc(slices.Concat(e.Text.Messages, e.Completion.Messages), func(m chat.Message) bool {
		return m.Role() == envs.RoleAssistant && len(m) == 2 && strings.TrimSpace(m.Text()) == ""
	})
}

// rowError names the row of an error.
func rowError(e chat.Example, err error) error { return fmt.Errorf("%s:%d: %w", e.File, e.Line, err) }

// Counts returns how many of the tokens are trained on.
func (x TokenExamples) Counts() (trained, tokens int) {
	for _, q := range x.Sequences {
		trained, tokens = trained+q.labels(), tokens+len(q.IDs)
	}
	return trained, tokens
}

func (p *CausalLM) encodeExample(e chat.Example, o EncodeOptions) (Sequence, error) {
	switch {
	case e.Format == chat.LanguageModelling && !e.Conversational():
		ids, err := p.Tokenizer.EncodeDocument(e.Text.Text, p.end(), o.MaxLength+1)
		return Sequence{IDs: ids}.allLabels(), err
	case e.Format == chat.LanguageModelling:
		how := (*template.Templates).Render
		if o.AssistantOnly && !slices.ContainsFunc(e.Text.Messages, func(m chat.Message) bool { return m.Role() == envs.RoleAssistant }) {
			return Sequence{}, errors.New("no message is the assistant's, so there is nothing to train on")
		}
		if o.AssistantOnly {
			how = (*template.Templates).RenderAssistant
		}
		rendered, err := p.render(e.Text.Messages, e.TemplateInputs, false, how)
		if err != nil {
			return Sequence{}, err
		}
		ids, spans, err := p.Tokenizer.EncodeStart(rendered.Text, o.MaxLength+1)
		q := Sequence{IDs: ids}
		if err != nil || !o.AssistantOnly {
			return q.allLabels(), err
		}
		q.Labels = make([]bool, len(q.IDs))
		for i := 1; i < len(spans); i++ {
			q.Labels[i] = slices.ContainsFunc(rendered.Generated, func(block jinja.Span) bool {
				return spans[i].Start < block.End && block.Start < spans[i].End
			})
		}
		return q, nil
	case !e.Conversational():
		ids, err := p.Tokenizer.EncodeDocument(e.Prompt.Text+e.Completion.Text, p.end(), o.MaxLength+1)
		if err != nil || !o.CompletionOnly {
			return Sequence{IDs: ids}.allLabels(), err
		}
		prompt, err := p.Tokenizer.EncodeDocument(e.Prompt.Text, -1, o.MaxLength+1)
		return Sequence{IDs: ids}.labelsAfter(prompt), err
	}
	prompt, err := p.render(e.Prompt.Messages, e.TemplateInputs, true, (*template.Templates).Render)
	if err != nil {
		return Sequence{}, err
	}
	whole, err := p.render(slices.Concat(e.Prompt.Messages, e.Completion.Messages), e.TemplateInputs, false, (*template.Templates).Render)
	if err != nil {
		return Sequence{}, err
	}
	given, shortened := prompt.Text, false
	if !strings.HasPrefix(whole.Text, given) {
		if given, err = p.promptWithin(whole.Text, given, e); err != nil {
			return Sequence{}, err
		}
		shortened = true
	}
	ids, _, err := p.Tokenizer.EncodeStart(whole.Text, o.MaxLength+1)
	q := Sequence{IDs: ids, shortened: shortened}
	if err != nil || !o.CompletionOnly {
		return q.allLabels(), err
	}
	promptIDs, _, err := p.Tokenizer.EncodeStart(given, o.MaxLength+1)
	return q.labelsAfter(promptIDs), err
}

// promptWithin is what the renderings of a prompt and of the complete conversation begin with, as in TRL: a template may
// open the assistant's turn with a thought that turns of the past do not have.
func (p *CausalLM) promptWithin(whole, prompt string, e chat.Example) (string, error) {
	before, err := p.render(e.Prompt.Messages, e.TemplateInputs, false, (*template.Templates).Render)
	if err != nil {
		return "", err
	}
	n := 0
	for n < min(len(whole), len(prompt)) && whole[n] == prompt[n] {
		n++
	}
	for n > 0 && n < len(whole) && !utf8.RuneStart(whole[n]) {
		n--
	}
	if n < len(strings.TrimRightFunc(before.Text, unicode.IsSpace)) {
		return "", errors.New("the chat template renders the messages of the prompt differently when the completion follows, so their border is unknown; use another template, or plain text")
	}
	return whole[:n], nil
}

// end is the token that ends a text, -1 if there is none.
func (p *CausalLM) end() int32 {
	if len(p.eos) == 0 {
		return -1
	}
	return p.eos[0]
}

// allLabels is q with every token but the first as a label.
func (q Sequence) allLabels() Sequence {
	q.Labels = make([]bool, len(q.IDs))
	for i := 1; i < len(q.Labels); i++ {
		q.Labels[i] = true
	}
	return q
}

// labelsAfter is q with labels from the first token on that differs from the prompt's, as in TRL. A token may cross the
// prompt's end.
func (q Sequence) labelsAfter(prompt []int32) Sequence {
	q.Labels = make([]bool, len(q.IDs))
	for i, same := 0, true; i < len(q.IDs); i++ {
		same = same && i < len(prompt) && q.IDs[i] == prompt[i]
		q.Labels[i] = i > 0 && !same
	}
	return q
}

// EncodePrompt is the tokens of an example's prompt: a text after the tokenizer's opening tokens, or a conversation whose
// next turn is the assistant's.
func (p *CausalLM) EncodePrompt(e chat.Example) ([]int32, error) {
	if e.Prompt.Conversational() {
		rendered, err := p.render(e.Prompt.Messages, e.TemplateInputs, true, (*template.Templates).Render)
		if err != nil {
			return nil, err
		}
		return p.Tokenizer.EncodeRaw(rendered.Text, false)
	}
	return p.EncodeText(e.Prompt.Text)
}

// EncodeText is the tokens of a text after the tokenizer's opening tokens.
func (p *CausalLM) EncodeText(text string) ([]int32, error) {
	ids, err := p.Tokenizer.EncodeRaw(text, false)
	return slices.Concat(p.Tokenizer.Opening(), ids), err
}
