package algo

import (
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// GPG is REINFORCE that makes up for rewards of 0 (arXiv 2504.02546, as in verl): with r the reward of one of n samples of a
// step, of which m have a reward other than 0,
//
//	A = (n/m)·(r − mean)        over the samples of a prompt
//	L = −Σ w·A·log π
//
// There is no ratio, so a step has one update.
type GPG struct{ Reduction }

func init() {
	Register(Definition{Name: "gpg", Help: "REINFORCE with the prompt's mean as baseline, scaled up by the share of rewards of 0 (GPG)", Tokens: true,
		New: func() Algorithm { return &GPG{} }})
}

var groupMean = rl.Advantages{Baseline: rl.BaselineGroup, Scale: rl.ScaleNone}

// Check implements Algorithm.
func (a *GPG) Check(samples int) error { return groupMean.Check(samples) }

// Needs implements Algorithm.
func (a *GPG) Needs() Needs {
	return Needs{Rewards: true, Reduction: a.Reduction.or(ReduceToken), ByAction: true, ByAdvantage: true}
}

// Prepare implements Algorithm.
func (a *GPG) Prepare(step *rl.Step) error {
	compare(step, groupMean, nil)
	n, paid := 0.0, 0.0
	for _, r := range slices.Concat(step.Rewards()...) {
		if math.IsNaN(r) {
			continue
		}
		if n++; r != 0 {
			paid++
		}
	}
	if paid == 0 {
		return nil
	}
	for _, x := range slices.Concat(step.Groups...) {
		for i := range x.Advantage {
			x.Advantage[i] *= float32(n / paid)
		}
	}
	return nil
}

// Loss implements Algorithm.
func (a *GPG) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	return reinforceLoss(s, b.LogProbs, b.Advantage, b.Weight)
}
