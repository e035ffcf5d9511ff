package algo

import (
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// Replay is REINFORCE on turns from a replay buffer: with the return G of a turn, clamped, and its n tokens,
//
//	L = −mean_turns Σ (G/n)·log π
//
// Earlier versions of the policy generated the turns, and there are no importance weights: the gradient is biased.
type Replay struct {
	Min float64 `option:"return_min" default:"0" help:"lower bound of discounted returns"`
	Max float64 `option:"return_max" default:"10" help:"upper bound of discounted returns"`
}

func init() {
	Register(Definition{Name: "reinforce_replay", Help: "REINFORCE on turns from a replay buffer", Tokens: true, New: func() Algorithm { return &Replay{} }})
	Register(Definition{Name: "reinforce_replay_kl", Help: "reinforce_replay with a penalty for leaving the reference policy", Tokens: true, New: func() Algorithm { return &ReplayKL{} }})
	Register(Definition{Name: "reinforce_replay_nll", Help: "reinforce_replay that also reports the reference's loss on the replayed turns", Tokens: true, New: func() Algorithm { return &ReplayNLL{} }})
}

// Check implements Algorithm.
func (a *Replay) Check(int) error {
	if !(a.Min <= a.Max) {
		return envs.OptionErrorf("return_min", "%v is above return_max %v", a.Min, a.Max)
	}
	return nil
}

// Needs implements Algorithm.
func (a *Replay) Needs() Needs {
	return Needs{Rewards: true, Replay: true, Reduction: ReduceSequence, Repeats: true}
}

// Prepare implements Algorithm: the clamped return of a turn is its advantage; there is no baseline.
func (a *Replay) Prepare(step *rl.Step) error {
	for _, x := range step.Samples {
		x.Fill(min(max(x.Reward(), a.Min), a.Max))
	}
	return nil
}

// Loss implements Algorithm.
func (a *Replay) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	return reinforceLoss(s, b.LogProbs, b.Advantage, b.Weight)
}

// ReplayKL is Replay with a penalty on each token that is more likely than under the reference:
//
//	L = −mean_turns Σ (1/n)·log π·(G − k·(log π − log π_ref)/n)
//
// The penalty is not detached. It is the term k·log π·(log π − log π_ref)/n² of the loss, whose gradient is 0 at
// log π = ½ log π_ref: it holds the policy back, and also makes replayed turns more likely, even at a return of 0.
type ReplayKL struct {
	Replay
	Coef float64 `option:"kl_coef" default:"0.25" range:"[0,)" common:"true" help:"weight of the KL to the reference policy (0 = off)"`
}

// Needs implements Algorithm.
func (a *ReplayKL) Needs() Needs {
	n := a.Replay.Needs()
	n.Reference = a.Coef > 0
	return n
}

// Loss implements Algorithm. Weight is 1/(turns·n), so Weight·turns is the 1/n of the penalty.
func (a *ReplayKL) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	if a.Coef == 0 {
		return a.Replay.Loss(s, b)
	}
	perToken := s.Scale(b.Weight, b.Samples)
	penalty := s.Scale(s.Mul(perToken, s.Sub(b.LogProbs, b.Reference)), a.Coef)
	return reinforceLoss(s, b.LogProbs, s.Sub(b.Advantage, penalty), b.Weight)
}

// ReplayNLL is Replay, and reports −mean_turns Σ (1/n)·log π_ref: how unlikely the reference finds the replayed turns.
// That has no gradient.
type ReplayNLL struct{ Replay }

// Needs implements Algorithm.
func (a *ReplayNLL) Needs() Needs {
	n := a.Replay.Needs()
	n.Reference = true
	return n
}

// Loss implements Algorithm.
func (a *ReplayNLL) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	b.Note(s, "reference_nll", s.Neg(s.Sum(s.Mul(b.Weight, b.Reference))))
	return a.Replay.Loss(s, b)
}
