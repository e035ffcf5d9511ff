package algo

import (
	"fmt"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// Returns bounds what turns out of a replay buffer are worth.
type Returns struct {
	Min float64 `option:"return_min" default:"0" help:"discounted returns are clamped to this from below"`
	Max float64 `option:"return_max" default:"10" help:"and to this from above"`
}

func (r Returns) check() error {
	if !(r.Min <= r.Max) {
		return fmt.Errorf("returns clamped to [%v, %v], which is empty", r.Min, r.Max)
	}
	return nil
}

// prepare makes the clamped return of a turn its advantage: there is no baseline.
func (r Returns) prepare(step *rl.Step) error {
	for _, x := range step.Samples {
		x.Fill(min(max(x.Reward(), r.Min), r.Max))
	}
	return nil
}

// Replayed is REINFORCE over turns out of a buffer: with the clamped return G of a turn and its n tokens,
//
//	L = −mean_turns Σ (G/n)·log π
//
// The turns were written by earlier versions of the policy, and there are no importance weights: it is biased.
type Replayed struct{ Returns }

// Check implements Algorithm.
func (a *Replayed) Check(int) error { return a.Returns.check() }

// Needs implements Algorithm.
func (a *Replayed) Needs() Needs {
	return Needs{Rewards: true, Reduction: ReduceSequence, Repeats: true}
}

// Prepare implements Algorithm.
func (a *Replayed) Prepare(step *rl.Step) error { return a.Returns.prepare(step) }

// Loss implements Algorithm.
func (a *Replayed) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	return reinforceLoss(s, b.LogProbs, b.Advantage, b.Weight)
}

// Stable is REINFORCE over replayed turns with a penalty for each token that is likelier than under the reference: with
// the clamped return G of a turn and its n tokens,
//
//	L = −mean_turns Σ (1/n)·log π·(G − k·(log π − log π_ref)/n)
//
// The penalty is not detached. It is the term k·log π·(log π − log π_ref)/n² of the loss, whose gradient vanishes at
// log π = ½ log π_ref: besides holding the policy back it makes what is replayed likelier, even at a return of 0.
type Stable struct {
	Returns
	Coef float64 `option:"kl_coef" default:"0.25" range:"[0,)" common:"true" help:"weight of the divergence from the reference policy; 0 = none"`
}

// Check implements Algorithm.
func (a *Stable) Check(int) error { return a.Returns.check() }

// Needs implements Algorithm.
func (a *Stable) Needs() Needs {
	return Needs{Rewards: true, Reduction: ReduceSequence, Repeats: true, Reference: a.Coef > 0}
}

// Prepare implements Algorithm.
func (a *Stable) Prepare(step *rl.Step) error { return a.Returns.prepare(step) }

// Loss implements Algorithm. Weight is 1/(turns·n), so Weight·turns is the 1/n of the penalty.
func (a *Stable) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	if a.Coef == 0 {
		return reinforceLoss(s, b.LogProbs, b.Advantage, b.Weight)
	}
	share := s.Scale(b.Weight, float64(b.Samples))
	penalty := s.Scale(s.Mul(share, s.Sub(b.LogProbs, b.Reference)), a.Coef)
	return reinforceLoss(s, b.LogProbs, s.Sub(b.Advantage, penalty), b.Weight)
}

// Distiller is REINFORCE over replayed turns beside the likelihood of their tokens under the reference: with the clamped
// return G of a turn and its n tokens,
//
//	L = −mean_turns Σ (1/n)·(G·log π + c·log π_ref)
//
// The second term does not depend on the policy: it says how likely the reference holds what is replayed, and has no
// gradient.
type Distiller struct {
	Returns
	Coef float64 `option:"nll_coef" default:"0.25" range:"[0,)" help:"weight of the reference's log-likelihood in the loss, which has no gradient and is logged only; 0 = none"`
}

// Check implements Algorithm.
func (a *Distiller) Check(int) error { return a.Returns.check() }

// Needs implements Algorithm.
func (a *Distiller) Needs() Needs {
	return Needs{Rewards: true, Reduction: ReduceSequence, Repeats: true, Reference: a.Coef > 0}
}

// Prepare implements Algorithm.
func (a *Distiller) Prepare(step *rl.Step) error { return a.Returns.prepare(step) }

// Loss implements Algorithm.
func (a *Distiller) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	loss := reinforceLoss(s, b.LogProbs, b.Advantage, b.Weight)
	if a.Coef == 0 {
		return loss
	}
	return s.Sub(loss, s.Scale(s.Sum(s.Mul(b.Weight, b.Reference)), a.Coef))
}
