package algo

import (
	"errors"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// ReinforcePlusPlus is PPO's loss without a value head (arXiv 2501.03262): the advantage of an action is its discounted return,
// whitened over all actions of the step,
//
//	G_t = Σ_{k≥t} γ^(k−t)·r_k                    plus_baseline none
//	G_t = R − mean of the prompt's rewards       plus_baseline group
//	A   = (G − mean)/std                         over the actions of the step
//	L   = −Σ w·min(ρA, clip(ρ, 1−low, 1+high)·A)
//
// Rewards are net of the KL penalty of each action, if kl_in_reward is set, as in the paper.
type ReinforcePlusPlus struct {
	Baseline string  `option:"plus_baseline" default:"none" allowed:"none,group" help:"baseline of reinforce++ before whitening: none, or the mean of the prompt's rewards (group)"`
	Gamma    float64 `option:"gamma" default:"1" range:"[0,1]" needs:"plus_baseline=none" help:"discount factor of rewards"`
	Clip
	Reduction
}

func init() {
	Register(Definition{Name: "reinforce++", Help: "PPO's loss without a value head: returns whitened over the step (REINFORCE++; with plus_baseline=group its baseline form)", Tokens: true,
		New: func() Algorithm { return &ReinforcePlusPlus{} }})
}

// Check implements Algorithm.
func (a *ReinforcePlusPlus) Check(samples int) error {
	if a.Baseline == "group" && samples < 2 {
		return errors.New("plus_baseline group compares the samples of a prompt: use at least 2 samples per prompt")
	}
	return nil
}

// Needs implements Algorithm.
func (a *ReinforcePlusPlus) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: a.Clip, Reduction: a.Reduction.or(ReduceToken), ByAction: true}
}

// Prepare implements Algorithm.
func (a *ReinforcePlusPlus) Prepare(step *rl.Step) error {
	if a.Baseline == "group" {
		compare(step, groupMean, nil)
	}
	var all []float32
	for _, x := range step.Samples {
		if a.Baseline != "group" {
			rewards := make([]float64, x.Len())
			for at := range rewards {
				rewards[at] = income(x, at)
			}
			x.Fill(0)
			for at, g := range rl.ReturnsToGo(rewards, a.Gamma) {
				x.Advantage[at] = float32(g)
			}
		}
		all = append(all, x.Advantage...)
	}
	rl.Whiten(all)
	for _, x := range step.Samples {
		all = all[copy(x.Advantage, all):]
	}
	return nil
}

// Loss implements Algorithm.
func (a *ReinforcePlusPlus) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	return surrogateLoss(s, b, b.Ratio(s), a.Clip, 0)
}
