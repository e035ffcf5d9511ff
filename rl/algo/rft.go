package algo

import (
	"fmt"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// RFT is rejection-sampling fine-tuning (Yuan et al. 2023; best of n, expert iteration): supervised fine-tuning on the policy's own
// completions whose reward is at least MinReward,
//
//	L = −(1/M) Σ log π        over the M tokens of the accepted completions
//
// Keep says which of a prompt's are accepted: the first of those with the highest reward, or all that differ from each other.
type RFT struct {
	MinReward float64 `option:"rft_min_reward" default:"1" help:"smallest reward of a completion that is learned from"`
	Keep      string  `option:"rft_keep" default:"best" allowed:"best,all" help:"accepted completions of a prompt: the best one, or all different ones with that reward"`
}

func init() {
	Register(Definition{Name: "rft", Help: "supervised fine-tuning on the policy's own completions with a high reward (rejection sampling, best of n)", Tokens: true,
		New: func() Algorithm { return &RFT{} }})
}

// Check implements Algorithm.
func (a *RFT) Check(int) error { return nil }

// Needs implements Algorithm. The likelihood of completions may be raised several times, whoever has sampled them.
func (a *RFT) Needs() Needs {
	return Needs{Rewards: true, Repeats: true, Reduction: ReduceToken, ByAction: true, Choose: a.accept}
}

// accept keeps the completions to learn from.
func (a *RFT) accept(step *rl.Step) {
	usable, all := map[*rl.Sample]bool{}, float64(len(step.Samples))
	for _, x := range step.Samples {
		usable[x] = true
	}
	step.Samples = nil
	solved := 0.0
	for _, group := range step.Groups {
		var good []*rl.Sample
		seen := map[string]bool{}
		for _, x := range group {
			text := fmt.Sprint(x.Tokens)
			switch {
			case !usable[x] || x.Penalised() < a.MinReward || seen[text]:
				continue
			case a.Keep == "all" || good == nil:
				good = append(good, x)
			case x.Penalised() > good[0].Penalised():
				good[0] = x
			}
			seen[text] = true
		}
		for _, x := range good {
			x.Fill(1)
		}
		if good != nil {
			solved++
		}
		step.Samples = append(step.Samples, good...)
	}
	step.Figures.Mean("rft/accepted_ratio", float64(len(step.Samples)), all)
	step.Figures.Mean("rft/solved_ratio", solved, float64(len(step.Groups)))
}

// Prepare implements Algorithm.
func (a *RFT) Prepare(*rl.Step) error { return nil }

// Loss implements Algorithm.
func (a *RFT) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	return reinforceLoss(s, b.LogProbs, b.Advantage, b.Weight)
}
