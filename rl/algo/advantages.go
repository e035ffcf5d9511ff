package algo

import (
	"math"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// What algorithms share: how losses are averaged, advantages over a baseline, advantages and losses of a value head.

// Reductions of a loss over actions.
const (
	ReduceToken    = "token"
	ReduceSequence = "sequence"
	ReduceDrGRPO   = "dr_grpo"
)

// ActionWeight is the weight of each action of a sample of the given length in a minibatch of n samples:
//
//	token     1/actions           all actions count the same (Yu et al. 2025, DAPO, equation 12)
//	sequence  1/(n·length)        all samples count the same (Shao et al. 2024, GRPO, equation 3)
//	dr_grpo   1/(n·longest)       length does not count (Liu et al. 2025, Dr. GRPO, section 3.2)
//
// with actions the number of actions of the minibatch and longest the most that a sample may have. n counts masked samples
// too, and is fractional if they are shared out among minibatches.
func ActionWeight(reduction string, length int, n float64, actions, longest int) float64 {
	switch reduction {
	case ReduceSequence:
		return 1 / (n * float64(length))
	case ReduceDrGRPO:
		return 1 / (n * float64(longest))
	}
	return 1 / float64(actions)
}

// Reduction says how the losses of actions are averaged.
type Reduction struct {
	Reduction string `option:"reduction" default:"auto" allowed:"auto,token,sequence,dr_grpo" help:"average of the token losses: token = over all tokens (DAPO), sequence = over each completion first, dr_grpo = divided by the longest completion allowed (Dr. GRPO), auto = sequence for reinforce, token for grpo"`
}

func (r Reduction) or(auto string) string {
	if r.Reduction == "" || r.Reduction == "auto" {
		return auto
	}
	return r.Reduction
}

// compare sets the advantage of all actions of a sample to its reward minus a baseline. Samples that are not learned from
// count in the baseline.
func compare(step *rl.Step, by rl.Advantages, given []float64) {
	penalised := step.Penalised()
	advantages := by.Of(penalised, step.Rewards(), given)
	step.Spread(advantages)
	if by.Scale != rl.ScaleNone {
		return
	}
	removed, n := 0.0, 0.0
	for g, rewards := range penalised {
		for i, r := range rewards {
			if !math.IsNaN(r) {
				removed += r - advantages[g][i]
				n++
			}
		}
	}
	step.Figures.Mean("baseline/mean", removed, n)
}

// estimate sets Advantage and Return of a step's samples: GAE over the actions of each episode, in order. Rewards are
// net of penalties; the last action of a sample also gets the penalty of its length.
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

// note reports the losses of actor and critic.
func note(s *torch.Scope, b *Batch, policy, value torch.Tensor) {
	b.Note(s, "policy_loss", policy)
	b.Note(s, "value_loss", value)
	b.Note(s, "value", s.Scale(s.Sum(b.Value), 1/float64(b.Actions)))
}
