package algo

import "rltrain/torch"

// distillerLoss is −Σ w·G·log π − c·Σ w·log π_ref over the tokens of turns. The second term does not depend on
// the policy: it says how likely the reference holds what is replayed, and has no gradient. All tensors [M].
func distillerLoss(s *torch.Scope, logProb, reference, returns, weight torch.Tensor, c float64) torch.Tensor {
	return s.Sub(reinforceLoss(s, logProb, returns, weight), s.Scale(s.Sum(s.Mul(weight, reference)), c))
}
