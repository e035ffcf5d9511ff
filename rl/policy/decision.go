package policy

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Decisions are a request to a decision model as tokens.
type Decisions struct {
	Tokens int // of all prompts

	config    decision.Config
	questions []decision.Question
	samples   []*rl.Sample // prompts, whose actions are the labels of their questions
}

// Asker asks questions by the settings in the folder of the policy, or else of its base model.
func (p *CausalLM) Asker() (*decision.Asker, error) {
	var c decision.Config
	for _, dir := range []string{p.source, p.dir} {
		var found bool
		var err error
		if c, found, err = decision.Load(dir); err != nil {
			return nil, err
		}
		if found {
			break
		}
	}
	controls := func() []string { return p.Tokenizer.ControlTokens(p.Templates.Source()) }
	return c.Asker(decision.Renderer{Chat: p.Templates, Special: p.Tokenizer.Special(), Controls: controls, Now: p.Template.Now}), nil
}

// EncodeDecisions turns questions about a state into prompts. A question whose labels are not single tokens, and a prompt
// that is longer than the model reads, are errors.
func (p *CausalLM) EncodeDecisions(asker *decision.Asker, state jinja.Value, questions []decision.Question) (Decisions, error) {
	if p.Templates == nil {
		return Decisions{}, fmt.Errorf("%s %w; choose a chat model", p.dir, chat.ErrNone)
	}
	prompts, err := asker.Prompts(state, questions)
	if err != nil {
		return Decisions{}, err
	}
	d := Decisions{config: asker.Config}
	for _, prompt := range prompts {
		x := &rl.Sample{}
		tokens, rows, labels, err := p.place(prompt)
		if err != nil {
			return d, err
		}
		x.Tokens = tokens
		for i, row := range rows {
			for _, id := range labels[i] {
				x.Rows, x.Actions = append(x.Rows, row), append(x.Actions, id)
			}
		}
		d.questions = append(d.questions, prompt.Questions...)
		d.Tokens += len(x.Tokens)
		d.samples = append(d.samples, x)
	}
	return d, nil
}

// place is a prompt as tokens. rows are the tokens that answer its questions, labels the tokens of their options.
func (p *CausalLM) place(prompt decision.Prompt) (tokens []int32, rows []int, labels [][]int32, err error) {
	for i, piece := range prompt.Pieces {
		ids, err := p.encodePiece(piece, i == 0)
		if err != nil {
			return nil, nil, nil, err
		}
		if tokens = append(tokens, ids...); len(tokens) > p.MaxLength() {
			return nil, nil, nil, fmt.Errorf("question %q: the prompt has more than the %d tokens that the model reads", prompt.Questions[0].Name, p.MaxLength())
		}
		if !piece.Mark || len(rows) == len(prompt.Questions) {
			continue
		}
		q := prompt.Questions[len(rows)]
		if len(tokens) == 0 {
			return nil, nil, nil, fmt.Errorf("question %q: nothing stands before the mark", q.Name)
		}
		ids, err = p.labelIDs(q.Labels)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("question %q: %w", q.Name, err)
		}
		rows, labels = append(rows, len(tokens)-1), append(labels, ids)
	}
	return tokens, rows, labels, nil
}

func (p *CausalLM) encodePiece(piece decision.Piece, first bool) ([]int32, error) {
	if piece.Text == "" {
		return nil, nil
	}
	if first {
		return p.Tokenizer.EncodeRaw(piece.Text, false)
	}
	return p.Tokenizer.EncodeInner(piece.Text, piece.Plain)
}

// labelIDs are the tokens of labels, which must be different ones.
func (p *CausalLM) labelIDs(labels []string) ([]int32, error) {
	unknown, has := p.Tokenizer.SpecialID("unk_token")
	all := make([]int32, len(labels))
	for i, label := range labels {
		ids, err := p.Tokenizer.EncodeRaw(label, false)
		if err != nil {
			return nil, err
		}
		if len(ids) != 1 || has && ids[0] == unknown || slices.Contains(all[:i], ids[0]) {
			return nil, fmt.Errorf("the labels %q are not different single tokens of this model", labels)
		}
		all[i] = ids[0]
	}
	return all, nil
}

// Decide answers the questions of d: the probabilities of their options, by name of the question.
func (p *CausalLM) Decide(ctx context.Context, d Decisions) (*jinja.Dict, error) {
	var logits []float32
	err := p.predict(ctx, d.samples, 1, func(s *torch.Scope, _ []*rl.Sample, out Output) {
		logits = append(logits, s.Read(out.LogProbs)...)
	})
	if err != nil {
		return nil, fmt.Errorf("deciding: %w", err)
	}
	answers := jinja.NewDict()
	for _, q := range d.questions {
		n := len(q.Labels)
		answers.Set(q.Name, q.Answer(Softmax(logits[:n], d.config.TemperatureOf(q.Type))))
		logits = logits[n:]
	}
	return answers, nil
}

// Softmax are the probabilities of logits at a temperature.
func Softmax(logits []float32, temperature float64) []float64 {
	highest, sum := float64(slices.Max(logits)), 0.0
	out := make([]float64, len(logits))
	for i, l := range logits {
		out[i] = math.Exp((float64(l) - highest) / temperature)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}
