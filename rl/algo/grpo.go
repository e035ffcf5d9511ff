package algo

import (
	"math"

	"rltrain/rl"
	"rltrain/torch"
)

func init() {
	Register(Algorithm{
		Name: GRPO, Scale: true, Reduction: true, Ratio: TokenRatio, ByAdvantage: true,
		Complete: func(c *TokenRLConfig) error {
			c.fill(rl.BaselineGroup, rl.ScaleGroup, ReduceToken)
			return nil
		},
		Advantages: compared,
		Loss: func(s *torch.Scope, b *LossBatch, c TokenRLConfig) torch.Tensor {
			return grpoLoss(s, b.LogProb, b.Old, b.Advantage, b.Weight, c.ClipLow, c.ClipHigh)
		},
	})
}

// grpoLoss is −Σ w·min(ρA, clip(ρ, 1−low, 1+high)A) over tokens, with ρ = π/π_old (Shao et al. 2024, GRPO,
// equation 3). Beside it stands klLoss. All tensors [M].
func grpoLoss(s *torch.Scope, logProb, old, advantage, weight torch.Tensor, low, high float64) torch.Tensor {
	ratio := s.Exp(s.Sub(logProb, old))
	clipped := s.Clamp(ratio, 1-low, 1+high)
	return s.Neg(s.Sum(s.Mul(weight, s.Minimum(s.Mul(ratio, advantage), s.Mul(clipped, advantage)))))
}

// klBound is where k3 stops to grow exponentially, as in rl.KLKind.Value.
const klBound = 20

// klLoss is Σ w·k(log π − log π_ref) over tokens, all [M]. Below −20 the third estimator goes on along its
// tangent: it stays finite, and still pulls back the tokens that have run away, which a clamp would let go.
func klLoss(s *torch.Scope, kind rl.KLKind, logProb, reference, weight torch.Tensor) torch.Tensor {
	d := s.Sub(logProb, reference)
	k := d
	switch kind {
	case rl.K2:
		k = s.Scale(s.Mul(d, d), 0.5)
	case rl.K3:
		near := s.Clamp(d, -klBound, math.MaxFloat32)
		beyond := s.Shift(s.Clamp(d, -math.MaxFloat32, -klBound), klBound)
		k = s.Add(s.Shift(s.Add(s.Exp(s.Neg(near)), near), -1), s.Scale(beyond, 1-math.Exp(klBound)))
	}
	return s.Sum(s.Mul(weight, k))
}
