package main

import (
	"fmt"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/torch"
)

func init() {
	algo.Register(algo.Definition{
		Name: "best_of", Help: "train on the best completions of each prompt", Tokens: true,
		New: func() algo.Algorithm { return &bestOf{} },
	})
}

// bestOf is rejection sampling: of the samples of a prompt the best are trained on, as in supervised fine-tuning. With Keep
// the fraction that is kept and n tokens in all,
//
//	L = −(1/n) Σ_kept log π
type bestOf struct {
	Keep float64 `option:"keep_best" default:"0.25" range:"(0,1]" help:"fraction of the completions of a prompt to train on"`
}

// Check refuses a single sample per prompt, which cannot be compared.
func (a *bestOf) Check(samplesPerPrompt int) error {
	if samplesPerPrompt < 2 {
		return fmt.Errorf("samples_per_prompt %d: best_of compares at least 2", samplesPerPrompt)
	}
	return nil
}

// Needs says that samples are rewarded, and that those without an advantage need no backward pass.
func (a *bestOf) Needs() algo.Needs {
	return algo.Needs{Rewards: true, ByAdvantage: true, Reduction: algo.ReduceToken}
}

// Prepare gives the best samples of each prompt the advantage 1, and the others 0.
func (a *bestOf) Prepare(step *rl.Step) error {
	for _, group := range step.Groups {
		for _, x := range group {
			better := 0
			for _, other := range group {
				if other.Reward() > x.Reward() || other.Reward() == x.Reward() && other.Index < x.Index {
					better++
				}
			}
			kept := 0.0
			if float64(better) < a.Keep*float64(len(group)) {
				kept = 1
			}
			x.Fill(kept)
		}
	}
	return nil
}

// Loss is a sum over the M actions of a batch; Weight holds what to divide by.
func (a *bestOf) Loss(s *torch.Scope, b *algo.Batch) torch.Tensor {
	return s.Neg(s.Sum(s.Mul(s.Mul(b.Weight, b.Advantage), b.LogProbs)))
}
