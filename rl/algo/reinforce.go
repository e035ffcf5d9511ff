package algo

import (
	"rltrain/rl"
	"rltrain/torch"
)

func init() {
	Register(Algorithm{
		Name: Reinforce, Baseline: true, Scale: true, Reduction: true, ByAdvantage: true,
		Complete: func(c *TokenRLConfig) error {
			c.fill(rl.BaselineMoving, rl.ScaleNone, ReduceSequence)
			return nil
		},
		Advantages: compared,
		Loss: func(s *torch.Scope, b *LossBatch, _ TokenRLConfig) torch.Tensor {
			return reinforceLoss(s, b.LogProb, b.Advantage, b.Weight)
		},
	})
}

// reinforceLoss is −Σ w·A·log π of the sampled tokens (Williams 1992): its gradient is that of the expected
// reward, and there is no ratio, so what it learns from must come from the policy as it is. logProb,
// advantage and weight [M].
func reinforceLoss(s *torch.Scope, logProb, advantage, weight torch.Tensor) torch.Tensor {
	return s.Neg(s.Sum(s.Mul(s.Mul(weight, advantage), logProb)))
}

// tokenWeight is the share of each of a sequence's tokens in the mean over a minibatch of n sequences with
// tokens sampled tokens in all:
//
//	token     1/tokens            every token counts the same (Yu et al. 2025, DAPO, equation 12)
//	sequence  1/(n·length)        every sequence counts the same (Shao et al. 2024, GRPO, equation 3)
//	dr_grpo   1/(n·longest)       and length has no say (Liu et al. 2025, Dr. GRPO, section 3.2)
//
// with longest the most tokens that a completion may have.
func tokenWeight(reduction string, length, n, tokens, longest int) float64 {
	switch reduction {
	case ReduceSequence:
		return 1 / (float64(n) * float64(length))
	case ReduceDrGRPO:
		return 1 / (float64(n) * float64(longest))
	}
	return 1 / float64(tokens)
}
