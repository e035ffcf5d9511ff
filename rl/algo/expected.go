package algo

import (
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// Expected improves a classifier with rewards that read its probabilities. A policy gradient misses that they change with
// the policy, so Expected differentiates through them, exactly, over all labels:
//
//	L = −mean_x Σ_a π(a|x)·R(a, π)
//
// It learns from the texts of a rollout; the sampled labels do not count.
type Expected struct {
	Rewards *reward.Labels
	Clip    Clip // of the ratio in the figures; the loss has none
}

// Check implements Algorithm.
func (a *Expected) Check(int) error { return nil }

// Needs implements Algorithm. The ratio is for the figures; the loss is exact however far the policy moves.
func (a *Expected) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: a.Clip, Labels: true}
}

// Prepare implements Algorithm.
func (a *Expected) Prepare(step *rl.Step) error {
	for _, x := range step.Samples {
		x.Fill(0)
	}
	return nil
}

// Loss implements Algorithm. Go computes the value of the objective and its gradient g with respect to π [S, C]; the
// tensor has that value and that gradient: it is −Σ π·g, shifted by a constant. A text whose reward fails is missing
// data and has no gradient.
func (a *Expected) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	probs := s.Exp(b.Labels)
	flat := s.Read(probs)
	truths := make([]int, len(b.Part))
	for i, x := range b.Part {
		truths[i] = int(x.Truth)
	}
	scores, grad := a.Rewards.Expected(truths, flat)
	objective, linear := 0.0, 0.0
	for _, total := range scores.Total {
		if total == total { // not NaN
			objective += total
		}
	}
	slope := make([]float32, len(grad))
	for i, g := range grad {
		slope[i] = float32(g)
		linear += g * float64(flat[i])
	}
	product := s.Sum(s.Mul(probs, s.Floats(slope, s.Shape(probs)...)))
	return s.Scale(s.Shift(s.Neg(product), linear-objective), 1/b.Samples)
}
