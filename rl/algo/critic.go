package algo

import (
	"rltrain/rl"
	"rltrain/torch"
)

// What algorithms with a value head share.

// estimate fills in Advantage and Return of a step's samples: GAE over the actions of each episode, in order. The
// reward of an action has its penalty taken off, and the last one of a sample that of its length.
func estimate(step *rl.Step, gamma, lambda float64, whiten bool) {
	var rewards, values []float32
	var done []bool
	for i, x := range step.Samples {
		for at := range x.Actions {
			r := x.Rewards[at]
			if x.Penalty != nil {
				r -= x.Penalty[at]
			}
			last := at == x.Len()-1
			if last {
				r += x.Overlong
			}
			rewards, values = append(rewards, float32(r)), append(values, x.Value[at])
			done = append(done, last && (i == len(step.Samples)-1 || step.Samples[i+1].Episode != x.Episode))
		}
	}
	advantages, returns := rl.GAE(rewards, values, done, 0, gamma, lambda)
	if len(returns) > 0 {
		step.Figures.Mean("explained_variance", rl.ExplainedVariance(values, returns), 1)
	}
	if whiten {
		rl.Whiten(advantages)
	}
	for _, x := range step.Samples {
		n := x.Len()
		x.Advantage, x.Return = advantages[:n:n], returns[:n:n]
		advantages, returns = advantages[n:], returns[n:]
	}
}

// valueLoss is ½ mean max((V−R)², (V_old + clip(V−V_old, ±limit) − R)²) over the actions of a minibatch, with limit 0
// ½ mean (V−R)².
func valueLoss(s *torch.Scope, b *Batch, limit float64) torch.Tensor {
	miss := s.Sub(b.Value, b.Return)
	squared := s.Mul(miss, miss)
	if limit > 0 {
		moved := s.Sub(s.Add(b.OldValue, s.Clamp(s.Sub(b.Value, b.OldValue), -limit, limit)), b.Return)
		squared = s.Maximum(squared, s.Mul(moved, moved))
	}
	return s.Scale(s.Sum(squared), 0.5/float64(b.Actions))
}

// note tells the terms of an actor and a critic apart.
func note(s *torch.Scope, b *Batch, policy, value torch.Tensor) {
	b.Note(s, "policy_loss", policy)
	b.Note(s, "value_loss", value)
	b.Note(s, "value", s.Scale(s.Sum(b.Value), 1/float64(b.Actions)))
}
