package algo

import "rltrain/torch"

// stableLoss is −Σ w·log π·(G − k·(log π − log π_ref)/n) over the tokens of turns, each of n sampled tokens: a
// return less a penalty for each token that is likelier than under the reference.
//
// The penalty is not detached. It is the term k·w·log π·(log π − log π_ref)/n of the loss, whose gradient
// vanishes at log π = ½ log π_ref: besides holding the policy back it makes what is replayed likelier, even
// at a return of 0. All tensors [M]; share is 1/n.
func stableLoss(s *torch.Scope, logProb, reference, returns, weight, share torch.Tensor, k float64) torch.Tensor {
	penalty := s.Scale(s.Mul(share, s.Sub(logProb, reference)), k)
	return s.Neg(s.Sum(s.Mul(s.Mul(weight, logProb), s.Sub(returns, penalty))))
}
