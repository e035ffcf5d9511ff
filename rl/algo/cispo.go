package algo

import (
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/torch"
)

// CISPO is REINFORCE with clipped importance weights: unlike under PPO's clip, every token keeps its gradient (MiniMax-M1, arXiv
// 2506.13585, equations 4 and 5). With A as in GRPO and ρ = π/π_old,
//
//	L = −Σ w·sg(clip(ρ, floor, cap))·A·log π
//
// where sg stops the gradient. The bounds are those of ρ itself; those of other programs may be distances from 1.
type CISPO struct {
	AdvantageScale
	Reduction
	Floor float64 `option:"ratio_floor" default:"0" range:"[0,1]" help:"smallest importance weight of cispo"`
	Cap   float64 `option:"ratio_cap" default:"5" range:"(0,)" help:"largest importance weight of cispo"`
}

func init() {
	Register(Definition{Name: "cispo", Help: "REINFORCE with clipped importance weights, so that every token keeps its gradient (CISPO)", Tokens: true,
		New: func() Algorithm { return &CISPO{} }})
}

// Check implements Algorithm.
func (a *CISPO) Check(samples int) error {
	if a.Floor > a.Cap {
		return envs.OptionErrorf("ratio_floor", "%g is above ratio_cap %g", a.Floor, a.Cap)
	}
	return a.AdvantageScale.Check(samples)
}

// Needs implements Algorithm.
func (a *CISPO) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: Clip{Low: 1 - a.Floor, High: a.Cap - 1}, Reduction: a.Reduction.or(ReduceToken), ByAction: true, ByAdvantage: true}
}

// Loss implements Algorithm.
func (a *CISPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	weight := s.Detach(s.Clamp(b.Ratio(s), a.Floor, a.Cap))
	return reinforceLoss(s, b.LogProbs, b.Advantage, s.Mul(b.Weight, weight))
}
