package algo

import (
	"math"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// VESPO weighs completions by a smooth function of their ratio that falls on both sides of 1 (arXiv 2602.10693): with A as in
// GRPO, W = exp Σ_t (log π − log π_old) of a completion, and k and λ chosen by the sign of A,
//
//	L = −Σ w·sg(φ(W))·A·log π        φ(W) = W^k·exp(λ(1 − W)), φ(1) = 1
//
// where sg stops the gradient. Log ratios are bounded to ±20, and log W to log 1e-8 below, as in TRL.
type VESPO struct {
	AdvantageScale
	Reduction
	PositivePower float64 `option:"vespo_k_pos" default:"2" range:"[0,)" help:"k where the advantage is not negative"`
	PositiveDecay float64 `option:"vespo_lambda_pos" default:"3" range:"[1e-4,)" help:"lambda where the advantage is not negative"`
	NegativePower float64 `option:"vespo_k_neg" default:"3" range:"[0,)" help:"k where the advantage is negative"`
	NegativeDecay float64 `option:"vespo_lambda_neg" default:"2" range:"[1e-4,)" help:"lambda where the advantage is negative"`
}

func init() {
	Register(Definition{Name: "vespo", Help: "REINFORCE with a smooth weight of whole completions by their ratio (VESPO)", Tokens: true,
		New: func() Algorithm { return &VESPO{} }})
}

// Needs implements Algorithm.
func (a *VESPO) Needs() Needs {
	return Needs{Rewards: true, Ratio: SequenceRatio, Clip: unclipped, Reduction: a.Reduction.or(ReduceToken), ByAction: true, ByAdvantage: true}
}

// Loss implements Algorithm.
func (a *VESPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	weight := b.Constant(s, func(x *rl.Sample, now, values []float32) {
		k, lambda := a.PositivePower, a.PositiveDecay
		if x.Advantage[0] < 0 {
			k, lambda = a.NegativePower, a.NegativeDecay
		}
		sum := 0.0
		for t := range now {
			sum += min(max(float64(now[t])-float64(x.Old[t]), -20), 20)
		}
		sum = min(max(sum, math.Log(1e-8)), 20)
		phi := math.Exp(lambda + k*sum - lambda*math.Exp(sum))
		for t := range values {
			values[t] = float32(phi)
		}
		b.Add("vespo/phi_mean", phi/b.Samples)
	})
	return reinforceLoss(s, b.LogProbs, b.Advantage, s.Mul(b.Weight, weight))
}
