package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/train"
)

// dpoBench is the case dpo_step.
type dpoBench struct {
	adaptedLlama
	Pairs      int  `json:"pairs" option:"pairs" default:"4" range:"[1,4096]" help:"pairs per step"`
	Prompt     int  `json:"prompt" option:"prompt" default:"64" range:"[1,2047]" help:"tokens per prompt"`
	Seq        int  `json:"seq" option:"seq" default:"256" range:"[2,2048]" help:"tokens of prompt and response"`
	Precompute bool `json:"precompute" option:"precompute" help:"precompute reference log-probs, outside of the step"`
}

// dpoPairs is the number of distinct pairs, in multiples of --pairs.
const dpoPairs = 8

func (b *dpoBench) units(vocab int) (units [][]*rl.Sample) {
	rng := rand.New(rand.NewPCG(7, 0))
	for u := range dpoPairs * b.Pairs {
		prompt := randomTokens(rng, b.Prompt, firstWord, vocab)
		var unit []*rl.Sample
		for side := range 2 {
			answer := randomTokens(rng, b.Seq-b.Prompt, firstWord, vocab)
			x := &rl.Sample{Tokens: slices.Concat(prompt, answer), Actions: answer, Prompt: u, Index: side}
			for i := range answer {
				x.Rows = append(x.Rows, b.Prompt-1+i)
			}
			unit = append(unit, x)
		}
		units = append(units, unit)
	}
	return units
}

func (b *dpoBench) run(ctx context.Context, reps int) (*result, error) {
	if err := inRange("prompt", b.Prompt, 1, b.Seq-1); err != nil {
		return nil, err
	}
	p, err := b.policy(dtypes[b.DType], "")
	if err != nil {
		return nil, err
	}
	defer p.Close()
	units := b.units(p.VocabSize())
	c := train.Config{Seed: 3}
	if b.Precompute {
		c.Precompute = slices.Concat(units...)
	}
	f, err := measureTraining(ctx, p, epochs.NewPreferences(units, b.Pairs, 0, 3), &algo.DPO{Losses: []string{"sigmoid"}, Beta: 0.1}, c, reps, b.DType)
	if err != nil {
		return nil, err
	}
	tokens, rate := 2*b.Pairs*b.Seq, float64(b.Pairs)/f.Best
	return &result{
		figures: f,
		more: map[string]any{
			"tokens_in_step": tokens, // counts the prompt for each side
			"tokens_per_s":   float64(tokens) / f.Best, "pairs_per_s": rate,
		},
		about:  fmt.Sprintf("%s, r %d", b.Shape, b.R),
		before: []string{fmt.Sprintf("batch\t%d pairs, %d tokens with a prompt of %d, precomputed reference: %t", b.Pairs, b.Seq, b.Prompt, b.Precompute)},
		speed:  fmt.Sprintf("%.1f pairs/s", rate),
	}, nil
}
