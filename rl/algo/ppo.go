package algo

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// PPO is proximal policy optimisation (Schulman et al. 2017, equations 7 and 9). With ρ = π/π_old of each action and its
// advantage A by GAE over the actions of its episode, whitened over the step,
//
//	L = mean −min(min(ρ, δ)·A, clip(ρ, 1−low, 1+high)·A)
//	  + c_v · ½ mean max((V−R)², (V_old + clip(V−V_old, ±ε_v) − R)²)
//
// over the M actions of a minibatch; δ is infinite by default. The trainer adds the entropy bonus. For classifiers an episode is one action, so the
// return is the reward and A = r − V.
type PPO struct {
	Clip
	TwoSided
	Gamma     float64 `option:"gamma" default:"1" range:"[0,1]" needs:"episodes" help:"discount factor of rewards"`
	Lambda    float64 `option:"gae_lambda" default:"0.95" range:"[0,1]" needs:"episodes" help:"lambda of generalised advantage estimation (GAE)"`
	ValueClip float64 `option:"value_clip" default:"0.2" range:"[0,)" help:"clip the change of the value to this (0 = off)"`
	ValueCoef float64 `option:"value_coef" default:"0.5" range:"(0,)" help:"weight of the value loss"`
	Whiten    bool    `option:"whiten_advantages" default:"true" help:"scale a rollout's advantages to mean 0 and standard deviation 1"`
}

func init() {
	Register(Definition{Name: "ppo", Help: "proximal policy optimisation, with a value head", Labels: true, Tokens: true,
		New: func() Algorithm { return &PPO{} }})
}

// Check implements Algorithm.
func (a *PPO) Check(int) error { return a.TwoSided.check(a.Clip) }

// Needs implements Algorithm.
func (a *PPO) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: a.Clip, Values: true}
}

// Prepare implements Algorithm: GAE over the actions of each episode.
func (a *PPO) Prepare(step *rl.Step) error {
	estimate(step, a.Gamma, a.Lambda, a.Whiten)
	return nil
}

// Loss implements Algorithm.
func (a *PPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	policy := surrogateLoss(s, b, b.Ratio(s), a.Clip, a.Delta)
	value := valueLoss(s, b, a.ValueClip)
	note(s, b, policy, value)
	return s.Add(policy, s.Scale(value, a.ValueCoef))
}
