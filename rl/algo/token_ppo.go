package algo

import (
	"fmt"

	"rltrain/rl"
	"rltrain/torch"
)

func init() {
	Register(Algorithm{
		Name: TokenPPO, Ratio: TokenRatio,
		Complete: func(c *TokenRLConfig) error {
			if !(c.Gamma >= 0 && c.Gamma <= 1 && c.Lambda >= 0 && c.Lambda <= 1) || c.ValueRate <= 0 || c.ValueCoef <= 0 {
				return fmt.Errorf("gamma %v, lambda %v, value rate %v, value coefficient %v: want the first two in [0,1] and the others above 0", c.Gamma, c.Lambda, c.ValueRate, c.ValueCoef)
			}
			return nil
		},
		Advantages: func(c TokenRLConfig, step *Step) { estimateAdvantages(step.Samples, c.Gamma, c.Lambda) },
		// With ρ = π/π_old: Schulman et al. 2017, equations 7 and 9, with the value clipped as their code does.
		Loss: func(s *torch.Scope, b *LossBatch, c TokenRLConfig) torch.Tensor {
			return s.Scale(clippedSurrogate(s, b.LogProb, b.Old, b.Advantage, c.ClipLow, c.ClipHigh), 1/float64(b.Tokens))
		},
		ValueLoss: func(s *torch.Scope, b *LossBatch, c TokenRLConfig) torch.Tensor {
			return s.Scale(clippedValueLoss(s, b.Value, b.OldValue, b.Return, c.ValueClip), 1/float64(b.Tokens))
		},
	})
}

// estimateAdvantages gives each sampled token its advantage and return by GAE along its trajectory: a token is
// a step, whose reward is that of the turn where it is the turn's last, plus penalty, one value a token. The
// advantages are whitened over all samples.
func estimateAdvantages(samples []*TokenSample, gamma, lambda float64) {
	var advantages []float32
	for _, x := range samples {
		n := len(x.Penalty)
		rewards, done := make([]float32, n), make([]bool, n)
		done[n-1] = true
		for i, r := range x.turnRewards() {
			rewards[i] = float32(r - x.Penalty[i])
		}
		x.Advantage, x.Return = rl.GAE(rewards, x.Value, done, 0, gamma, lambda)
		advantages = append(advantages, x.Advantage...)
	}
	rl.Whiten(advantages)
	for _, x := range samples {
		copy(x.Advantage, advantages)
		advantages = advantages[len(x.Advantage):]
	}
}

// turnRewards is the reward of each sampled token: that of its turn for the last of a turn, 0 for the others.
// The reward of a turn in which nothing was sampled goes to the token before it.
func (x *TokenSample) turnRewards() []float64 {
	rewards := make([]float64, 0, len(x.Penalty))
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
		rewards[len(rewards)-1] += x.Overlong
	}
	return rewards
}
