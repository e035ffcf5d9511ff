package algo

import (
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// What algorithms share: how losses are averaged, advantages over a baseline, advantages and losses of a value head.

// Reductions of a loss over actions.
const (
	ReduceToken    = "token"
	ReduceSequence = "sequence"
	ReduceDrGRPO   = "dr_grpo"
	ReduceSum      = "sum"
)

// ActionWeight is the weight of each action of a sample of the given length in a minibatch of n samples:
//
//	token     1/actions           all actions count the same (Yu et al. 2025, DAPO, equation 12)
//	sequence  1/(n·length)        all samples count the same (Shao et al. 2024, GRPO, equation 3)
//	dr_grpo   1/(n·longest)       length does not count (Liu et al. 2025, Dr. GRPO, section 3.2)
//	sum       1/n                 as dr_grpo, without the constant (with GSPO: LUSPO, arXiv 2602.05261)
//
// with actions the number of actions of the minibatch and longest the most that a sample may have. n counts masked samples
// too, and is fractional if they are shared out among minibatches.
func ActionWeight(reduction string, length int, n float64, actions, longest int) float64 {
	switch reduction {
	case ReduceSequence:
		return 1 / (n * float64(length))
	case ReduceDrGRPO:
		return 1 / (n * float64(longest))
	case ReduceSum:
		return 1 / n
	}
	return 1 / float64(actions)
}

// Reduction says how the losses of actions are averaged.
type Reduction struct {
	Reduction string `option:"reduction" default:"auto" allowed:"auto,token,sequence,dr_grpo,sum" help:"average of the token losses: token = over all tokens (DAPO), sequence = over each completion first, dr_grpo = divided by the longest completion allowed (Dr. GRPO), sum = summed over each completion (gspo with it is LUSPO), auto = sequence for reinforce, gspo and sapo, token for the others"`
}

func (r Reduction) or(auto string) string {
	if r.Reduction == "" || r.Reduction == "auto" {
		return auto
	}
	return r.Reduction
}

// AdvantageScale is what divides an advantage.
type AdvantageScale struct {
	Scale string `option:"advantage_scale" default:"auto" allowed:"auto,none,group,batch,mean" help:"what divides the advantages: the standard deviation of the prompt's rewards (group), of the batch's, the mean of the prompt's rewards (mean; MaxRL), or none; auto = none for reinforce, group for the others"`
}

func (a AdvantageScale) or(auto rl.Scale) rl.Scale {
	if a.Scale == "" || a.Scale == "auto" {
		return auto
	}
	return rl.Scale(a.Scale)
}

// group compares the samples of a prompt with each other, as GRPO does.
func (a AdvantageScale) group() rl.Advantages {
	return rl.Advantages{Baseline: rl.BaselineGroup, Scale: a.or(rl.ScaleGroup)}
}

// Check returns an error if there is nothing to compare the samples of a prompt with.
func (a AdvantageScale) Check(samples int) error { return a.group().Check(samples) }

// Prepare sets the advantages of a step by comparing the samples of each prompt.
func (a AdvantageScale) Prepare(step *rl.Step) error {
	by := a.group()
	if err := divisible(by, step.Rewards()); err != nil {
		return err
	}
	compare(step, by, nil)
	return nil
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

// divisible rejects negative rewards where their mean divides.
func divisible(by rl.Advantages, rewards [][]float64) error {
	if by.Scale != rl.ScaleMean {
		return nil
	}
	for _, r := range slices.Concat(rewards...) {
		if r < 0 {
			return fmt.Errorf("advantage_scale mean divides by the mean reward of a prompt, so rewards must not be negative: one is %g", r)
		}
	}
	return nil
}

// compareSteps compares the rewards of the steps of a prompt's samples with each other. The advantage of an action is the sum over
// the steps that end at it or later.
func compareSteps(step *rl.Step, by rl.Advantages) error {
	net, raw := make([][]float64, len(step.Groups)), make([][]float64, len(step.Groups))
	for g, group := range step.Groups {
		for _, x := range group {
			ofStep, unpenalised := stepRewards(x)
			net[g], raw[g] = append(net[g], ofStep...), append(raw[g], unpenalised...)
		}
	}
	if err := divisible(by, raw); err != nil {
		return err
	}
	for g, advantages := range by.Of(net, raw, nil) {
		for _, x := range step.Groups[g] {
			ends := stepsOf(x)
			sum := 0.0
			x.Fill(0)
			for k, at := len(ends)-1, x.Len()-1; at >= 0; at-- {
				for ; k >= 0 && ends[k] == at; k-- {
					sum += advantages[k]
				}
				x.Advantage[at] = float32(sum)
			}
			advantages = advantages[len(ends):]
		}
	}
	return nil
}

// stepsOf are the last actions of the steps of a sample. A sample without them is one step.
func stepsOf(x *rl.Sample) []int {
	if len(x.Ends) == 0 || !x.HasReward() {
		return []int{x.Len() - 1}
	}
	return x.Ends
}

// stepRewards are the rewards of the steps of a sample, with penalties and without; NaN if the sample has no reward.
func stepRewards(x *rl.Sample) (net, raw []float64) {
	if x.Len() == 0 || !x.HasReward() {
		return []float64{x.Penalised()}, []float64{x.Reward()}
	}
	at := 0
	for _, end := range stepsOf(x) {
		sum, unpenalised := 0.0, 0.0
		for ; at <= end; at++ {
			sum, unpenalised = sum+income(x, at), unpenalised+x.Rewards[at]
		}
		net, raw = append(net, sum), append(raw, unpenalised)
	}
	return net, raw
}

// income is the reward of an action, net of its penalties; the last action of a sample also gets the penalty of its length.
func income(x *rl.Sample, at int) float64 {
	r := x.Rewards[at]
	if x.Penalty != nil {
		r -= x.Penalty[at]
	}
	if at == x.Len()-1 {
		r += x.Overlong
	}
	return r
}

// estimate sets Advantage and Return of a step's samples: GAE over the actions of each episode, in order.
func estimate(step *rl.Step, gamma, lambda float64, whiten bool) {
	var rewards, values []float32
	var done []bool
	for i, x := range step.Samples {
		for at := range x.Actions {
			rewards, values = append(rewards, float32(income(x, at))), append(values, x.Value[at])
			done = append(done, at == x.Len()-1 && (i == len(step.Samples)-1 || step.Samples[i+1].Episode != x.Episode))
		}
	}
	advantages, returns := rl.GAE(rewards, values, done, gamma, lambda)
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
