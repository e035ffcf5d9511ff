package rl

import (
	"fmt"
	"math"
)

// KLKind is an estimator of the KL to the reference policy from sampled tokens (Schulman 2020, "Approximating KL Divergence").
// With d = log π − log π_ref of the sampled token:
//
//	k1 = d             unbiased, may be negative
//	k2 = ½d²           biased; as a loss it has the gradient of the KL
//	k3 = e^−d − 1 + d  unbiased, never negative
//
// A loss is a mean over samples of the policy before the update. There k1 has a gradient of mean 0, and k3 that of the
// forward KL, KL(π_ref‖π): its ∇ is (1 − π_ref/π)·∇log π. Multiplied by the ratio ρ = π/π_old, as TRL does, both have the
// gradient of the reverse KL, KL(π‖π_ref), whose mean over samples is E[log(π/π_ref)·∇log π]. In the reward, k1 has that
// gradient too.
type KLKind string

const (
	K1 KLKind = "k1"
	K2 KLKind = "k2"
	K3 KLKind = "k3"
)

// klBound is where Value stops growing exponentially: beyond d = −20 one token would dominate every mean and overflow a loss.
const klBound = 20

// ParseKLKind reads the name of an estimator.
func ParseKLKind(name string) (KLKind, error) {
	switch k := KLKind(name); k {
	case K1, K2, K3:
		return k, nil
	}
	return "", fmt.Errorf("KL estimator %q is unknown: choose k1, k2 or k3", name)
}

// Value is the estimate from one token, for metrics and rewards. Below d = −20, k3 continues along its tangent, so that it
// stays finite and keeps growing.
func (k KLKind) Value(logProb, reference float64) float64 {
	d := logProb - reference
	switch k {
	case K1:
		return d
	case K2:
		return d * d / 2
	}
	if d < -klBound {
		return math.Expm1(klBound) - klBound + (math.Exp(klBound)-1)*(-klBound-d)
	}
	return math.Expm1(-d) + d
}

// KLController holds the coefficient of a KL penalty: fixed, or adapted to keep the KL near a target (Ziegler et al. 2019,
// section 2.2):
//
//	e = clip(KL/target − 1, −0.2, 0.2)        coefficient ← coefficient·(1 + e·min(1, n/horizon))
type KLController struct {
	coef, target, horizon float64
}

// NewKLController starts at coef, at least 0. target is the KL per completion in nats and horizon a number of completions;
// both are above 0, or both 0 for a fixed coefficient.
func NewKLController(coef, target, horizon float64) (*KLController, error) {
	fixed, adaptive := target == 0 && horizon == 0, target > 0 && horizon > 0
	if !(coef >= 0) || !fixed && !adaptive || math.IsInf(coef+target+horizon, 0) {
		return nil, fmt.Errorf("KL coefficient %v, target %v, horizon %v: the coefficient must be at least 0, and target and horizon both above 0 or both 0", coef, target, horizon)
	}
	if adaptive && coef == 0 {
		return nil, fmt.Errorf("KL coefficient 0 with target %v: an adaptive coefficient has to start above 0", target)
	}
	return &KLController{coef: coef, target: target, horizon: horizon}, nil
}

// Coef is the current coefficient.
func (c *KLController) Coef() float64 { return c.coef }

// Update adapts the coefficient to the mean kl of n completions, if it is finite.
func (c *KLController) Update(kl float64, n int) {
	if c.target == 0 || math.IsNaN(kl) || math.IsInf(kl, 0) {
		return
	}
	e := min(max(kl/c.target-1, -0.2), 0.2)
	c.coef *= 1 + e*min(1, float64(n)/c.horizon)
}

// KLControllerState is the state of a KLController.
type KLControllerState struct {
	Coef float64 `json:"coef"`
}

// State returns the state for a checkpoint.
func (c *KLController) State() KLControllerState { return KLControllerState{Coef: c.coef} }

// Restore continues from s.
func (c *KLController) Restore(s KLControllerState) { c.coef = s.Coef }
