package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"

	"rltrain/envs"
	"rltrain/envs/chat"
	"rltrain/envs/dataset"
	"rltrain/rl"
	template "rltrain/torch/transformers/chat"
	"rltrain/torch/transformers/jinja"
)

// A Sequence is a stream of tokens, some of which a loss reads.
type Sequence struct {
	IDs []int32
	// Labels tells of each token whether it is one that training predicts; never of the first.
	Labels []bool
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

// Samples are the sequences as something to imitate: the labels are the actions. Their Prompt is their index.
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
	Cut       int // examples that were longer than the limit
	Dropped   int // examples without a label, or with none left after cutting
	Null      int // rows without a text
}

// EncodeOptions say what of an example is trained.
type EncodeOptions struct {
	MaxLength      int  // tokens that an example is cut at, at its end; 0 = as many as the model has positions
	CompletionOnly bool // of prompt and completion, the completion
	AssistantOnly  bool // of messages, what the template marks as the assistant's
}

// Encode turns texts, conversations, and prompts with completions into sequences that end with the token
// that ends a text; that token is a label. Errors name the file and line of an example that cannot be
// encoded; a data set that leaves nothing to train on is one.
func (p *Token) Encode(examples iter.Seq2[chat.Example, error], o EncodeOptions) (TokenExamples, error) {
	if limit := p.MaxLength(); o.MaxLength == 0 || o.MaxLength > limit {
		o.MaxLength = limit
	}
	var out TokenExamples
	for e, err := range examples {
		if errors.Is(err, chat.ErrNull) {
			out.Null++
			continue
		}
		if err != nil {
			return out, err
		}
		q, err := p.encodeExample(e, o)
		if err != nil {
			return out, fmt.Errorf("%s:%d: %w", e.File, e.Line, err)
		}
		if len(q.IDs) > o.MaxLength {
			q.IDs, q.Labels = q.IDs[:o.MaxLength], q.Labels[:o.MaxLength]
			out.Cut++
		}
		if q.labels() == 0 {
			out.Dropped++
			continue
		}
		out.Sequences = append(out.Sequences, q)
	}
	if len(out.Sequences) == 0 && out.Dropped > 0 {
		return out, fmt.Errorf("none of %d examples has a token to train within %d tokens; raise max_length", out.Dropped, o.MaxLength)
	}
	return out, nil
}

func (p *Token) encodeExample(e chat.Example, o EncodeOptions) (Sequence, error) {
	switch {
	case e.Format == chat.LanguageModelling && !e.Conversational():
		return p.encodeText(e.Text.Text, 0, o.MaxLength)
	case e.Format == chat.LanguageModelling:
		how := (*template.Templates).Render
		if o.AssistantOnly {
			how = (*template.Templates).RenderAssistant
		}
		rendered, err := p.render(e.Text.Messages, e, false, how)
		if err != nil {
			return Sequence{}, err
		}
		q, spans, err := p.encodeRendered(rendered.Text, o.MaxLength)
		if err != nil || !o.AssistantOnly {
			return q.all(), err
		}
		q.Labels = make([]bool, len(q.IDs))
		for i := 1; i < len(spans); i++ {
			q.Labels[i] = slices.ContainsFunc(rendered.Generated, func(block jinja.Span) bool {
				return spans[i].Start < block.End && block.Start < spans[i].End
			})
		}
		return q, nil
	case !e.Conversational():
		from := 0
		if o.CompletionOnly {
			from = len(e.Prompt.Text)
		}
		return p.encodeText(e.Prompt.Text+e.Completion.Text, from, o.MaxLength)
	}
	prompt, err := p.render(e.Prompt.Messages, e, true, (*template.Templates).Render)
	if err != nil {
		return Sequence{}, err
	}
	whole, err := p.render(slices.Concat(e.Prompt.Messages, e.Completion.Messages), e, false, (*template.Templates).Render)
	if err != nil {
		return Sequence{}, err
	}
	if len(whole.Text) < len(prompt.Text) || whole.Text[:len(prompt.Text)] != prompt.Text {
		return Sequence{}, errors.New("the chat template writes the prompt in another way when the completion follows; give the conversation as messages")
	}
	q, spans, err := p.encodeRendered(whole.Text, o.MaxLength)
	if err != nil || !o.CompletionOnly {
		return q.all(), err
	}
	q.Labels = after(spans, len(prompt.Text))
	return q, nil
}

// encodeText is the tokens of a text of which the bytes from from on are trained, and its end; of a longer text one
// more than limit.
func (p *Token) encodeText(text string, from, limit int) (Sequence, error) {
	end := int32(-1)
	if len(p.eos) > 0 {
		end = p.eos[0]
	}
	ids, spans, err := p.Tokenizer.EncodeDocument(text, end, limit+1)
	q := Sequence{IDs: ids}
	if err != nil || from == 0 {
		return q.all(), err
	}
	q.Labels = after(spans, from)
	if len(q.Labels) > 0 {
		q.Labels[0] = false
	}
	return q, nil
}

func (p *Token) encodeRendered(text string, limit int) (Sequence, []jinja.Span, error) {
	ids, spans, err := p.Tokenizer.EncodeStart(text, limit+1)
	return Sequence{IDs: ids}, spans, err
}

// all is q with every token but the first as a label.
func (q Sequence) all() Sequence {
	q.Labels = make([]bool, len(q.IDs))
	for i := 1; i < len(q.Labels); i++ {
		q.Labels[i] = true
	}
	return q
}

// after tells the tokens that have a byte at from or behind it.
func after(spans []jinja.Span, from int) []bool {
	labels := make([]bool, len(spans))
	for i, span := range spans {
		labels[i] = span.End > from
	}
	return labels
}

// renderer is a way to render a conversation.
type renderer = func(*template.Templates, []template.Message, template.Options) (jinja.Rendering, error)

// render writes messages as the chat template does; prompt opens the assistant's next turn.
func (p *Token) render(messages []chat.Message, e chat.Example, prompt bool, how renderer) (jinja.Rendering, error) {
	if p.Templates == nil {
		return jinja.Rendering{}, fmt.Errorf("the data has messages, but %s %w", p.model.Dir, template.ErrNone)
	}
	o := template.Options{AddGenerationPrompt: prompt, Special: p.Tokenizer.Special()}
	var err error
	if o.Tools, o.Variables, err = templateValues(e); err != nil {
		return jinja.Rendering{}, err
	}
	converted := make([]template.Message, len(messages))
	for i, m := range messages {
		data, err := dataset.Object(m).MarshalJSON()
		if err == nil {
			err = json.Unmarshal(data, &converted[i])
		}
		if err != nil {
			return jinja.Rendering{}, fmt.Errorf("message %d: %w", i+1, err)
		}
	}
	return how(p.Templates, converted, o)
}

// Prompt is the tokens of a prompt: a text behind what the tokenizer opens texts with, or a conversation
// whose next turn is the assistant's.
func (p *Token) Prompt(c chat.Content) ([]int32, error) {
	if c.Conversational() {
		rendered, err := p.render(c.Messages, chat.Example{}, true, (*template.Templates).Render)
		if err != nil {
			return nil, err
		}
		return p.Tokenizer.EncodeRaw(rendered.Text, false)
	}
	ids, err := p.Tokenizer.EncodeRaw(c.Text, false)
	return slices.Concat(p.Tokenizer.Opening(), ids), err
}

// templateValues are what an example gives its template beside the messages.
func templateValues(e chat.Example) (tools []*jinja.Dict, variables map[string]jinja.Value, err error) {
	convert := func(v any) (jinja.Value, error) {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		return jinja.ParseJSON(data)
	}
	for i, tool := range e.Tools {
		v, err := convert(tool)
		if err != nil {
			return nil, nil, fmt.Errorf("tool %d: %w", i+1, err)
		}
		d, ok := v.(*jinja.Dict)
		if !ok {
			return nil, nil, fmt.Errorf("tool %d is not an object", i+1)
		}
		tools = append(tools, d)
	}
	for _, field := range e.TemplateArgs {
		if variables == nil {
			variables = map[string]jinja.Value{}
		}
		if variables[field.Name], err = convert(field.Value); err != nil {
			return nil, nil, fmt.Errorf("template argument %s: %w", field.Name, err)
		}
	}
	return tools, variables, nil
}

// Conversation is an environment's messages as examples have them.
func Conversation(messages []envs.Message) []chat.Message {
	out := make([]chat.Message, len(messages))
	for i, m := range messages {
		out[i] = chat.Message{{Name: "role", Value: m.Role}, {Name: "content", Value: m.Content}}
	}
	return out
}
