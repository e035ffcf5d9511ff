package algo

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// A2C is the advantage actor-critic (Mnih et al. 2016, section 4, without its parallel learners): one update per rollout.
// With the advantage A by GAE over the actions of an episode and the return R = A + V,
//
//	L = −mean A·log π  +  c_v · ½ mean (V−R)²
//
// over the M actions of the rollout. With λ = 1, A is the discounted return minus V. The gradient equals PPO's with one
// epoch, no clipping and no whitening. For classifiers an episode is one action, so A = r − V.
type A2C struct {
	Gamma     float64 `option:"gamma" default:"1" range:"[0,1]" needs:"episodes" help:"discount factor of rewards"`
	Lambda    float64 `option:"gae_lambda" default:"1" range:"[0,1]" needs:"episodes" help:"lambda of generalised advantage estimation (GAE)"`
	ValueCoef float64 `option:"value_coef" default:"0.5" range:"(0,)" help:"weight of the value loss"`
	Whiten    bool    `option:"whiten_advantages" help:"scale a rollout's advantages to mean 0 and standard deviation 1"`
}

func init() {
	Register(Definition{Name: "a2c", Help: "advantage actor-critic: one update per rollout, with a value head", Labels: true, Tokens: true,
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
