package algo

import "rltrain/torch"

// rlooLoss is −Σ_i min(ρ_i A_i, clip(ρ_i, 1−low, 1+high) A_i) over sequences, with
// ρ_i = exp Σ_t (log π − log π_old): a completion is one action (Ahmadian et al. 2024, section 3.2).
// logProb and old [M]; member [S, M] is 1 where a token is of a sequence; advantage [S].
func rlooLoss(s *torch.Scope, logProb, old, member, advantage torch.Tensor, low, high float64) torch.Tensor {
	ratio := s.Exp(s.SumLast(s.Mul(member, s.Sub(logProb, old))))
	clipped := s.Clamp(ratio, 1-low, 1+high)
	return s.Neg(s.Sum(s.Minimum(s.Mul(ratio, advantage), s.Mul(clipped, advantage))))
}
