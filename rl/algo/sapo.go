package algo

import (
	"math"

	"github.com/rltrain/rltrain/torch"
)

// SAPO replaces GRPO's clip by a smooth gate on the ratio ρ = π/π_old (arXiv 2511.20347, equations 5 and 6): with A as in GRPO,
//
//	L = −Σ w·(4/τ)·σ(τ(ρ − 1))·A        τ = τ_pos if A > 0, else τ_neg
//
// The gate has slope 1 at ρ = 1 and flattens on both sides, sooner where τ is larger.
type SAPO struct {
	AdvantageScale
	Reduction
	Positive float64 `option:"sapo_temperature_pos" default:"1" range:"(0,)" help:"temperature of the gate for positive advantages"`
	Negative float64 `option:"sapo_temperature_neg" default:"1.05" range:"(0,)" help:"temperature of the gate for other advantages"`
}

func init() {
	Register(Definition{Name: "sapo", Help: "GRPO with a smooth gate on the ratio instead of a clip (SAPO)", Tokens: true,
		New: func() Algorithm { return &SAPO{} }})
}

// Needs implements Algorithm.
func (a *SAPO) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: unclipped, Reduction: a.Reduction.or(ReduceSequence), ByAction: true, ByAdvantage: true}
}

// unclipped is the range of losses without a clip.
var unclipped = Clip{Low: 1, High: math.Inf(1)}

// Loss implements Algorithm.
func (a *SAPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	temperature := b.BySign(s, a.Positive, a.Negative)
	scale := b.BySign(s, 4/a.Positive, 4/a.Negative)
	ratio := b.Ratio(s)
	gate := s.Mul(scale, s.Sigmoid(s.Mul(temperature, s.Shift(ratio, -1))))
	return s.Neg(s.Sum(s.Mul(s.Mul(b.Weight, b.Advantage), gate)))
}
