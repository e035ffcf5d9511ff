package algo

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// RLOO is REINFORCE with a whole completion as one action (Ahmadian et al. 2024, sections 3.2 and 4.1): with the advantage
// A_i, the reward minus the mean of the prompt's other samples, and ρ_i = exp Σ_t (log π − log π_old),
//
//	L = −(1/n) Σ_i min(ρ_i A_i, clip(ρ_i, 1−low, 1+high)·A_i)
type RLOO struct{ Clip }

func init() {
	Register(Definition{Name: "rloo", Help: "REINFORCE on whole completions, each compared with the other samples of its prompt (RLOO)", Labels: true, Tokens: true,
		New: func() Algorithm { return &RLOO{} }})
}

var leaveOneOut = rl.Advantages{Baseline: rl.BaselineLeaveOneOut, Scale: rl.ScaleNone}

// Check implements Algorithm.
func (a *RLOO) Check(samples int) error { return leaveOneOut.Check(samples) }

// Needs implements Algorithm.
func (a *RLOO) Needs() Needs {
	return Needs{Rewards: true, Ratio: SequenceRatio, Clip: a.Clip, ByAdvantage: true}
}

// Prepare implements Algorithm.
func (a *RLOO) Prepare(step *rl.Step) error {
	compare(step, leaveOneOut, nil)
	return nil
}

// Loss implements Algorithm.
func (a *RLOO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	member, advantage := b.Sequences(s)
	ratio := s.Exp(s.SumLast(s.Mul(member, s.Sub(b.LogProbs, b.Old))))
	clipped := s.Clamp(ratio, 1-a.Low, 1+a.High)
	worst := s.Minimum(s.Mul(ratio, advantage), s.Mul(clipped, advantage))
	return s.Scale(s.Sum(worst), -1/b.Samples)
}
