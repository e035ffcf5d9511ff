package algo

import (
	"math"

	"github.com/rltrain/rltrain/torch"
)

// GMPO weighs a completion by the geometric mean of its tokens' ratios, each clipped where it would raise the objective further
// (arXiv 2507.20673, equation 4): with A as in GRPO, T tokens and n completions,
//
//	l_t = min(log π − log π_old, high) if A > 0, else max(log π − log π_old, −low)
//	L   = −(1/n) Σ A·exp((1/T) Σ_t l_t)
type GMPO struct {
	AdvantageScale
	Low  float64 `option:"log_clip_low" default:"0.4" range:"(0,)" help:"lower clip of the logarithm of a token's ratio: -log_clip_low"`
	High float64 `option:"log_clip_high" default:"0.4" range:"(0,)" help:"upper clip of the logarithm of a token's ratio"`
}

func init() {
	Register(Definition{Name: "gmpo", Help: "GRPO with the geometric mean of the tokens' clipped ratios (GMPO)", Tokens: true,
		New: func() Algorithm { return &GMPO{} }})
}

// Needs implements Algorithm.
func (a *GMPO) Needs() Needs {
	clip := Clip{Low: -math.Expm1(-a.Low), High: math.Expm1(a.High)}
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: clip, Reduction: ReduceSequence, ByAdvantage: true}
}

// Loss implements Algorithm.
func (a *GMPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	// sign·l is at most high where A > 0, and at most low elsewhere.
	sign, bound := b.BySign(s, 1, -1), b.BySign(s, a.High, a.Low)
	clipped := s.Mul(sign, s.Minimum(s.Mul(sign, s.Sub(b.LogProbs, b.Old)), bound))
	member, advantage := b.Sequences(s)
	shares := make([]float32, len(b.Part))
	for i, x := range b.Part {
		shares[i] = 1 / float32(x.Len())
	}
	mean := s.Mul(s.Floats(shares, int64(len(shares))), s.SumLast(s.Mul(member, clipped)))
	return s.Scale(s.Sum(s.Mul(advantage, s.Exp(mean))), -1/b.Samples)
}
