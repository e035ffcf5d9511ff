package algo

import (
	"rltrain/rl"
	"rltrain/torch"
)

func init() {
	Register(Algorithm{
		Name: RLOO, Ratio: SequenceRatio, ByAdvantage: true,
		Complete: func(c *TokenRLConfig) error {
			c.fill(rl.BaselineLeaveOneOut, rl.ScaleNone, "")
			return nil
		},
		Advantages: compared,
		Loss: func(s *torch.Scope, b *LossBatch, c TokenRLConfig) torch.Tensor {
			member, advantage := b.Sequences(s)
			return s.Scale(rlooLoss(s, b.LogProb, b.Old, member, advantage, c.ClipLow, c.ClipHigh), 1/float64(b.N))
		},
	})
}

// rlooLoss is −Σ_i min(ρ_i A_i, clip(ρ_i, 1−low, 1+high) A_i) over sequences, with
// ρ_i = exp Σ_t (log π − log π_old): a completion is one action (Ahmadian et al. 2024, section 3.2).
// logProb and old [M]; member [S, M] is 1 where a token is of a sequence; advantage [S].
func rlooLoss(s *torch.Scope, logProb, old, member, advantage torch.Tensor, low, high float64) torch.Tensor {
	ratio := s.Exp(s.SumLast(s.Mul(member, s.Sub(logProb, old))))
	clipped := s.Clamp(ratio, 1-low, 1+high)
	return s.Neg(s.Sum(s.Minimum(s.Mul(ratio, advantage), s.Mul(clipped, advantage))))
}

// membership [S, M] is 1 where a token is of a sequence.
func membership(s *torch.Scope, b *rl.Batch) torch.Tensor {
	n, m := len(b.Sequences), len(b.Sequence)
	member := make([]float32, n*m)
	for i, sequence := range b.Sequence {
		member[sequence*m+i] = 1
	}
	return s.Floats(member, int64(n), int64(m))
}
