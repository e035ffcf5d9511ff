package algo

import (
	"errors"
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// GSPO is GRPO with one ratio per completion, the geometric mean of those of its T tokens (arXiv 2507.18071, equations 5 to 7;
// the form for tokens, equation 13): with A as in GRPO,
//
//	s = exp((1/T) Σ_t (log π − log π_old))
//	L = −Σ w·min(min(s_t, δ)·A, clip(s_t, 1−low, 1+high)·A)        s_t = sg(s)·π/sg(π)
//
// where sg stops the gradient. s_t has the value of s, and if A is the same for all tokens of a completion, L has the
// gradient of its completion's ratio. The mean of the logarithms keeps s near 1, so the clip is a thousandth of GRPO's.
type GSPO struct {
	AdvantageScale
	Reduction
	Clip `defaults:"clip_low=3e-4,clip_high=4e-4"`
	TwoSided
}

func init() {
	Register(Definition{Name: "gspo", Help: "GRPO with one ratio per completion, the geometric mean of its tokens' (GSPO; with reduction=sum LUSPO)", Tokens: true,
		New: func() Algorithm { return &GSPO{} }})
}

// Check implements Algorithm.
func (a *GSPO) Check(samples int) error {
	if r := a.Reduction.or(ReduceSequence); r != ReduceSequence && r != ReduceSum {
		return envs.OptionErrorf("reduction", "the reduction %s would weigh the ratio of a completion by its length: choose sequence (GSPO; TRL's loss_type grpo) or sum (LUSPO; luspo)", r)
	}
	return errors.Join(a.AdvantageScale.Check(samples), a.TwoSided.check(a.Clip))
}

// Needs implements Algorithm.
func (a *GSPO) Needs() Needs {
	return Needs{Rewards: true, Ratio: MeanRatio, Clip: a.Clip, Reduction: a.Reduction.or(ReduceSequence), ByAction: true, ByAdvantage: true}
}

// Loss implements Algorithm.
func (a *GSPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	means := b.Constant(s, func(x *rl.Sample, now, values []float32) {
		sum := 0.0
		for t := range now {
			sum += float64(now[t]) - float64(x.Old[t])
		}
		for t := range values {
			values[t] = float32(math.Exp(sum / float64(len(values))))
		}
	})
	ratio := s.Mul(means, s.Exp(s.Sub(b.LogProbs, s.Detach(b.LogProbs))))
	return surrogateLoss(s, b, ratio, a.Clip, a.Delta)
}
