package policy

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers/decision"
)

// Decider is a policy whose action is an option of a question about a state: π(a|x) is the softmax of the options' logits,
// which are those of a language model's next token for their labels, or the outputs of a classifier's head for a fixed list
// of questions.
type Decider struct {
	decides
	Asker *decision.Asker // its Temperature divides the logits of answers, not those that training sees
	// MaxLength is the most tokens of a prompt for a language model; 0 = what the model reads.
	MaxLength int

	lm        *CausalLM
	head      *Classifier
	questions []decision.Question // of the head: their options are its labels, one after the other
}

// decides is the model of a Decider.
type decides interface {
	Policy
	Parameters() (total, trainable int64)
	ActivationBytes(checkpointed bool) int64
	CacheBytes() int64
	Save(dir string) error
	Close()
}

// NewHeadDecider answers a fixed list of questions with a head on the text of the state.
func NewHeadDecider(head *Classifier, questions []decision.Question) *Decider {
	return &Decider{decides: head, Asker: (decision.Config{}).Asker(decision.Renderer{}), head: head, questions: questions}
}

// HeadLabels names the outputs of a head for a list of questions.
func HeadLabels(questions []decision.Question) (labels []string) {
	for _, q := range questions {
		for _, option := range q.Options {
			labels = append(labels, q.Name+": "+option)
		}
	}
	return labels
}

// FixedQuestions are the questions of cases, each once. A name that has two lists of options is an error.
func FixedQuestions(cases []envs.Decision) (all []decision.Question, err error) {
	known := map[string]decision.Question{}
	for _, d := range cases {
		q, met := known[d.Question.Name]
		switch {
		case !met:
			known[d.Question.Name] = d.Question
			all = append(all, d.Question)
		case q.Type != d.Question.Type || !slices.Equal(q.Options, d.Question.Options):
			return nil, fmt.Errorf("%s:%d: questions.%s: has other options than in rows before, and a head needs a fixed list; use --policy score with a language model", d.File, d.Line, q.Name)
		}
	}
	return all, nil
}

// BaseModel is the name of the base model.
func (p *Decider) BaseModel() string { return p.base().BaseModel }

// Longest is the number of tokens that the model reads at most.
func (p *Decider) Longest() int {
	if p.lm != nil {
		return p.lm.MaxLength()
	}
	return p.head.MaxLength
}

func (p *Decider) base() *backbone {
	if p.lm != nil {
		return p.lm.backbone
	}
	return p.head.backbone
}

// noOption is added to the logits of options that a question lacks.
const noOption = -1e9

// Forward implements Policy. Labels has log π of the options, [S, C] for the longest list of options; those that a question
// lacks have π = 0.
func (p *Decider) Forward(s *torch.Scope, b *rl.Batch, pass Pass) Output {
	how := torch.Pass{Adapter: !pass.Base, Checkpoint: pass.Checkpoint}
	if pass.Dropout {
		how.Dropout = torch.Dropout{P: p.base().adapter.config.Dropout, Keys: b.Dropout}
	}
	z, logits, first := p.options(s, b, how)
	n, width := len(b.Options), 0
	for _, options := range b.Options {
		width = max(width, len(options))
	}
	index, mask := make([]int64, 0, n*width), make([]float32, 0, n*width)
	for i, options := range b.Options {
		for k := range width {
			if k < len(options) {
				index, mask = append(index, first[i][k]), append(mask, 0)
			} else {
				index, mask = append(index, first[i][0]), append(mask, noOption)
			}
		}
	}
	rows, columns := int64(n), int64(width)
	labels := s.View(s.Rows(logits, s.Ints(index, rows*columns)), rows, columns)
	labels = s.LogSoftmax(s.Add(labels, s.Floats(mask, rows, columns)))
	out := Output{
		LogProbs: s.Pick(labels, s.Ints(b.Actions, rows)),
		Entropy:  s.Neg(s.SumLast(s.Mul(s.Exp(labels), labels))),
		Labels:   labels,
		Rank:     func(s *torch.Scope) []int64 { return ranks(s.Read(labels), b.Actions, width) },
	}
	if pass.Values {
		out.Values = p.base().value.of(s, z, pass)
	}
	return out
}

// options are the states of the S samples, [S, H], the logits of options, [N, 1], and where those of each sample are.
func (p *Decider) options(s *torch.Scope, b *rl.Batch, how torch.Pass) (z, logits torch.Tensor, at [][]int64) {
	at = make([][]int64, len(b.Options))
	if p.lm != nil {
		z = p.lm.states(s, b.Sequences, b.Rows, how)
		var rows, tokens []int64
		for i, options := range b.Options {
			for _, id := range options {
				at[i] = append(at[i], int64(len(rows)))
				rows, tokens = append(rows, int64(i)), append(tokens, int64(id))
			}
		}
		logProbs, _, _ := p.lm.logProbs(s, s.Rows(z, s.Ints(rows, int64(len(rows)))), tokens, 1)
		return z, s.View(logProbs, int64(len(tokens)), 1), at
	}
	texts, of := b.Sequences, []int64(nil)
	if how.Dropout.P == 0 {
		texts, of = distinct(texts)
	}
	z, logits = p.head.read(s, texts, how)
	width := int64(len(p.head.Labels))
	logits = s.View(logits, int64(len(texts))*width, 1)
	for i, options := range b.Options {
		row := int64(i)
		if of != nil {
			row = of[i]
		}
		for _, label := range options {
			at[i] = append(at[i], row*width+int64(label))
		}
	}
	if of != nil {
		z = s.Rows(z, s.Ints(of, int64(len(of))))
	}
	return z, logits, at
}

// LogProbs are log π of the options of each sample, at temperature 1.
func (p *Decider) LogProbs(ctx context.Context, samples []*rl.Sample) ([][]float32, error) {
	var all [][]float32
	err := p.base().inParts(ctx, len(samples), func(i int) int { return len(samples[i].Tokens) }, func(s *torch.Scope, from, to int) error {
		out := p.Forward(s, rl.NewBatch(samples[from:to]), Pass{})
		flat := s.Read(out.Labels)
		width := len(flat) / (to - from)
		for i, x := range samples[from:to] {
			all = append(all, slices.Clone(flat[i*width:i*width+len(x.Options)]))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("deciding: %w", err)
	}
	return all, nil
}

// Probs are the answers: Softmax of LogProbs at the temperature of each question's type.
func (p *Decider) Probs(cases []envs.Decision, logProbs [][]float32) [][]float64 {
	all := make([][]float64, len(cases))
	for i := range cases {
		all[i] = Softmax(logProbs[i], p.Asker.TemperatureOf(cases[i].Question.Type))
	}
	return all
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
