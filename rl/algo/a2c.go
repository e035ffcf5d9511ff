package algo

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// A2C is the advantage actor-critic (Mnih et al. 2016, section 4, without its parallel learners), for labels and tokens
// alike: one update on each rollout, by the policy that played it. With the advantage A by GAE along an episode and the
// return R = A + V,
//
//	L = −mean A·log π  +  c_v · ½ mean (V−R)²
//
// over the M actions of the rollout. λ = 1, as usual, makes A the discounted return less V. The gradient is that of PPO
// with one epoch, no clip and advantages as they are. Where an episode has one action, a label, A = r − V.
type A2C struct {
	Gamma     float64 `option:"gamma" default:"1" range:"[0,1]" needs:"episodes" help:"discount of later rewards"`
	Lambda    float64 `option:"gae_lambda" default:"1" range:"[0,1]" needs:"episodes" help:"lambda of generalised advantage estimation"`
	ValueCoef float64 `option:"value_coef" default:"0.5" range:"(0,)" help:"weight of the value loss"`
	Whiten    bool    `option:"whiten_advantages" help:"shift and scale a rollout's advantages to mean 0 and deviation 1"`
}

func init() {
	Register(Definition{Name: "a2c", Help: "advantage actor-critic: one update a rollout, with a value head", Labels: true, Tokens: true,
		New: func() Algorithm { return &A2C{} }})
}

// Check implements Algorithm.
func (a *A2C) Check(int) error { return nil }

// Needs implements Algorithm.
func (a *A2C) Needs() Needs { return Needs{Rewards: true, Values: true} }

// Prepare implements Algorithm: GAE over the actions of each episode.
func (a *A2C) Prepare(step *rl.Step) error {
	estimate(step, a.Gamma, a.Lambda, a.Whiten)
	return nil
}

// Loss implements Algorithm.
func (a *A2C) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	policy := reinforceLoss(s, b.LogProbs, b.Advantage, b.Weight)
	value := valueLoss(s, b, 0)
	note(s, b, policy, value)
	return s.Add(policy, s.Scale(value, a.ValueCoef))
}
