package algo

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// Reinforce is REINFORCE with a baseline (Williams 1992): with the advantage A of a sample, its reward minus the baseline,
//
//	L = −Σ w·A·log π          ∇L = −∇E[reward] if the samples are the policy's own
//
// There is no ratio, so a step has one update.
type Reinforce struct {
	Baseline string  `option:"baseline" default:"auto" allowed:"auto,none,group,length,leave_one_out,batch,moving,greedy" help:"baseline that is subtracted from rewards: the mean of the prompt's rewards (group), weighted by length (length; OPO) or without the completion itself (leave_one_out), the mean of the batch, a moving average, the reward of the greedy completion (greedy; ReMax), or none; auto = moving"`
	Start    float64 `option:"baseline_start" default:"0.5" needs:"baseline=auto|moving" help:"moving baseline at the first step"`
	Decay    float64 `option:"baseline_decay" default:"0.9" range:"[0,1)" needs:"baseline=auto|moving" help:"decay of the moving baseline b: b = decay * b + (1 - decay) * mean reward of the step"`
	AdvantageScale
	Reduction

	average *float64 // of the rewards; nil before the first step
}

func init() {
	Register(Definition{Name: "reinforce", Help: "REINFORCE with a baseline", Labels: true, Tokens: true,
		New: func() Algorithm { return &Reinforce{} }})
}

func (a *Reinforce) advantages() rl.Advantages {
	by := rl.Advantages{Baseline: rl.BaselineMoving, Scale: a.AdvantageScale.or(rl.ScaleNone)}
	if a.Baseline != "" && a.Baseline != "auto" {
		by.Baseline = rl.Baseline(a.Baseline)
	}
	return by
}

// Check implements Algorithm.
func (a *Reinforce) Check(samples int) error { return a.advantages().Check(samples) }

// Needs implements Algorithm.
func (a *Reinforce) Needs() Needs {
	return Needs{Rewards: true, Reduction: a.Reduction.or(ReduceSequence), ByAction: true, ByAdvantage: true, Greedy: a.Baseline == string(rl.BaselineGreedy)}
}

// Prepare implements Algorithm.
func (a *Reinforce) Prepare(step *rl.Step) error {
	by, given := a.advantages(), step.Greedy
	switch by.Baseline {
	case rl.BaselineMoving:
		given = make([]float64, len(step.Groups))
		for g := range given {
			given[g] = a.moving()
		}
	case rl.BaselineLength:
		given = byLength(step)
	}
	if err := divisible(by, step.Rewards()); err != nil {
		return err
	}
	compare(step, by, given)
	a.follow(step.Penalised())
	return nil
}

// byLength returns Σ L·r/Σ L over each prompt's samples with a reward, with L their lengths: the baseline of the least variance
// if the gradient of a completion grows with its length (OPO, arXiv 2505.23585). NaN if there are none.
func byLength(step *rl.Step) []float64 {
	baselines := make([]float64, len(step.Groups))
	for g, rewards := range step.Penalised() {
		sum, length := 0.0, 0.0
		for i, r := range rewards {
			if n := float64(step.Groups[g][i].Len()); !math.IsNaN(r) {
				sum, length = sum+n*r, length+n
			}
		}
		baselines[g] = sum / length
	}
	return baselines
}

// moving is the moving average of the rewards of earlier steps.
func (a *Reinforce) moving() float64 {
	if a.average == nil {
		return a.Start
	}
	return *a.average
}

// follow moves the average towards the mean reward of a step, if it has any reward.
func (a *Reinforce) follow(rewards [][]float64) {
	stats := rl.StatsOf(rewards)
	if stats.Failed < len(slices.Concat(rewards...)) {
		next := a.Decay*a.moving() + (1-a.Decay)*stats.Mean
		a.average = &next
	}
}

// reinforceState is what changes from step to step.
type reinforceState struct {
	Value float64 `json:"value"`
}

// State implements rl.Stateful.
func (a *Reinforce) State() any { return reinforceState{a.moving()} }

// Restore implements rl.Stateful.
func (a *Reinforce) Restore(state json.RawMessage) error {
	var s reinforceState
	err := json.Unmarshal(state, &s)
	a.average = &s.Value
	return err
}

// Loss implements Algorithm.
func (a *Reinforce) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	return reinforceLoss(s, b.LogProbs, b.Advantage, b.Weight)
}

// reinforceLoss is −Σ w·A·log π. logProbs, advantage and weight [M].
func reinforceLoss(s *torch.Scope, logProbs, advantage, weight torch.Tensor) torch.Tensor {
	return s.Neg(s.Sum(s.Mul(s.Mul(weight, advantage), logProbs)))
}
