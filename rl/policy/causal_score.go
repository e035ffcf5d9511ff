package policy

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// Scored is the policy's evaluation of a given completion, token by token.
type Scored struct {
	IDs      []int32
	LogProbs []float32 // log π of each token
	Entropy  []float32 // of the distribution at each token, in nats
	Rank     []int64   // number of more likely tokens
}

// Score runs the policy, at a temperature above 0, on prompts with given completions. Neither may be empty.
func (p *CausalLM) Score(ctx context.Context, prompts, completions [][]int32, temperature float64) ([]Scored, error) {
	sequences := make([]Sequence, len(prompts))
	for i, prompt := range prompts {
		n := len(prompt) + len(completions[i])
		if len(prompt) == 0 || len(completions[i]) == 0 || n > p.MaxLength() {
			return nil, fmt.Errorf("scoring: row %d has %d prompt and %d completion tokens; neither may be empty, and both must fit the model's %d positions", i+1, len(prompt), len(completions[i]), p.MaxLength())
		}
		sequences[i] = Sequence{IDs: append(append(make([]int32, 0, n), prompt...), completions[i]...), Labels: make([]bool, n)}
		for t := len(prompt); t < n; t++ {
			sequences[i].Labels[t] = true
		}
	}
	var all []Scored
	err := p.predict(ctx, Samples(sequences), temperature, func(s *torch.Scope, part []*rl.Sample, out Output) {
		logProbs, entropy, rank := s.Read(out.LogProbs), s.Read(out.Entropy), out.Rank(s)
		for _, x := range part {
			n := x.Len()
			all = append(all, Scored{x.Actions, logProbs[:n:n], entropy[:n:n], rank[:n:n]})
			logProbs, entropy, rank = logProbs[n:], entropy[n:], rank[n:]
		}
	})
	if err != nil {
		return nil, fmt.Errorf("scoring: %w", err)
	}
	return all, nil
}

// predict runs the policy on samples, part by part, without a gradient.
func (p *CausalLM) predict(ctx context.Context, samples []*rl.Sample, temperature float64, visit func(s *torch.Scope, part []*rl.Sample, out Output)) error {
	return p.inParts(ctx, len(samples), func(i int) int { return len(samples[i].Tokens) }, func(s *torch.Scope, from, to int) error {
		part := samples[from:to]
		visit(s, part, p.Forward(s, rl.NewBatch(part), Pass{Temperature: temperature}))
		return nil
	})
}

// Validation measures a language model on held-out SFT data, over all labels.
type Validation struct {
	Loss     float64 `json:"loss"` // mean −log π in nats
	Accuracy float64 `json:"accuracy"`
	Entropy  float64 `json:"entropy"` // mean, in nats
	Labels   int     `json:"labels"`
	Partial  bool    `json:"partial,omitempty"` // Accuracy and Entropy are unknown
}

// Perplexity is exp(Loss).
func (v Validation) Perplexity() float64 { return math.Exp(v.Loss) }

// Validate measures the policy on the actions of samples.
func (p *CausalLM) Validate(ctx context.Context, samples []*rl.Sample) (Validation, error) {
	var v Validation
	err := p.predict(ctx, samples, 1, func(s *torch.Scope, part []*rl.Sample, out Output) {
		v.Loss -= s.Item(s.Sum(out.LogProbs))
		v.Entropy += s.Item(s.Sum(out.Entropy))
		for _, rank := range out.Rank(s) {
			v.Labels++
			if rank == 0 {
				v.Accuracy++
			}
		}
	})
	if err != nil {
		return Validation{}, fmt.Errorf("validating: %w", err)
	}
	n := float64(max(1, v.Labels))
	v.Loss, v.Accuracy, v.Entropy = v.Loss/n, v.Accuracy/n, v.Entropy/n
	return v, nil
}

// Classifiers and reward models on a language model have a score layer, a linear layer without bias that reads the state
// of the last token, as transformers' …ForSequenceClassification has it.

// scoreWeight is what transformers calls the layer.
const scoreWeight = "score.weight"

// lastStates are the states of the last token of each sequence, [S, H]. The common beginning of neighbours is computed once.
func (p *CausalLM) lastStates(s *torch.Scope, sequences [][]int32, how torch.Pass) torch.Tensor {
	rows := make([]int64, len(sequences))
	begin := 0
	for i, ids := range sequences {
		begin += len(ids)
		rows[i] = int64(begin - 1)
	}
	return p.states(s, sequences, rows, how)
}

// saveScored writes the adapter as that of a sequence classifier, with the score layer.
func (p *CausalLM) saveScored(dir string, score []safetensors.Tensor) error {
	first, _, _ := strings.Cut(p.config.Linears()[0].Name, ".")
	c := p.adapter.stored()
	c.TaskType, c.Prefix, c.ModulesToSave = lora.SequenceClassification, first+".", []string{"score"}
	pairs, err := p.adapter.pairs()
	if err != nil {
		return err
	}
	for i := range pairs {
		pairs[i].Module = strings.TrimPrefix(pairs[i].Module, c.Prefix)
	}
	return lora.Save(dir, c, pairs, score)
}

// attachScored puts the adapter of a sequence classifier on the model.
func (p *CausalLM) attachScored(a savedAdapter) error {
	c := a.Config
	if c.TaskType != lora.SequenceClassification {
		return fmt.Errorf("%s: task_type is %s; a sequence classifier has %s", a.dir, c.TaskType, lora.SequenceClassification)
	}
	if err := a.fits(p.config, p.dir); err != nil {
		return err
	}
	for i := range a.Pairs {
		a.Pairs[i].Module = c.Prefix + a.Pairs[i].Module
	}
	c.Prefix, c.ModulesToSave = "", nil
	return p.attach(c, a.Pairs)
}
