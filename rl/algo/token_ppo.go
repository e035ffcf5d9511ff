package algo

import (
	"rltrain/rl"
	"rltrain/torch"
)

// tokenPPOLoss is, over the sampled tokens,
//
//	Σ max(−Aρ, −A clip(ρ, 1−low, 1+high)) + c_v·½ Σ max((V−R)², (clip(V, V_old ± limit) − R)²)
//
// with ρ = π/π_old (Schulman et al. 2017, equations 7 and 9, with the value clipped as their code does). All
// tensors [M].
func tokenPPOLoss(s *torch.Scope, logProb, old, advantage, values, oldValues, returns torch.Tensor, c TokenRLConfig) (policy, value torch.Tensor) {
	return clippedSurrogate(s, logProb, old, advantage, c.ClipLow, c.ClipHigh),
		clippedValueLoss(s, values, oldValues, returns, c.ValueClip)
}

// estimateAdvantages gives each sampled token its advantage and return by GAE along its trajectory: a token is
// a step, whose reward is that of the turn where it is the turn's last, plus penalty, one value a token. The
// advantages are whitened over all samples. It returns how well the values foresaw the returns.
func estimateAdvantages(samples []*tokenSample, gamma, lambda float64) (explained float64) {
	var values, returns, advantages []float32
	for _, x := range samples {
		n := len(x.old)
		rewards, done := make([]float32, n), make([]bool, n)
		done[n-1] = true
		for i, r := range x.turnRewards() {
			rewards[i] = float32(r - x.penalty[i])
		}
		x.advantage, x.returns = rl.GAE(rewards, x.value, done, 0, gamma, lambda)
		values, returns, advantages = append(values, x.value...), append(returns, x.returns...), append(advantages, x.advantage...)
	}
	rl.Whiten(advantages)
	for _, x := range samples {
		copy(x.advantage, advantages)
		advantages = advantages[len(x.advantage):]
	}
	return rl.ExplainedVariance(values, returns)
}

// turnRewards is the reward of each sampled token: that of its turn for the last of a turn, 0 for the others.
// The reward of a turn in which nothing was sampled goes to the token before it.
func (x *tokenSample) turnRewards() []float64 {
	rewards := make([]float64, 0, len(x.old))
	at, owed := 0, 0.0
	for _, turn := range x.Turns {
		for ; at < turn.End; at++ {
			if x.Source[at] == rl.Sampled {
				rewards = append(rewards, 0)
			}
		}
		if owed += turn.Reward; len(rewards) > 0 {
			rewards[len(rewards)-1] += owed
			owed = 0
		}
	}
	if len(rewards) > 0 {
		rewards[len(rewards)-1] += x.overlong
	}
	return rewards
}
