package decisions

import (
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers/decision"
)

// LossOptions say what the supervised stage lowers.
type LossOptions struct {
	Kind      string  `option:"decision_loss" default:"cross_entropy" allowed:"cross_entropy,brier,ranked" help:"loss of an answer: cross_entropy; brier = squared error of the probabilities; ranked = ranked probability score of score questions, brier of the others"`
	Smoothing float64 `option:"label_smoothing" default:"0" range:"[0,1)" help:"train on answers mixed with this fraction of the uniform distribution"`
}

// Supervised is supervised training on answers, which may be distributions t:
//
//	cross_entropy  L = −mean Σ_k t_k log π_k
//	brier          L = mean Σ_k (π_k − t_k)²
//	ranked         L = mean Σ_j (Σ_{k≤j} π_k − t_k)²/(C − 1)
type Supervised struct {
	LossOptions
	Cases []envs.Decision
}

// Check implements algo.Algorithm.
func (a *Supervised) Check(int) error { return nil }

// Needs implements algo.Algorithm.
func (a *Supervised) Needs() algo.Needs { return algo.Needs{Dropout: true, Labels: true} }

// Prepare implements algo.Algorithm.
func (a *Supervised) Prepare(*rl.Step) error { return nil }

// Loss implements algo.Algorithm.
func (a *Supervised) Loss(s *torch.Scope, b *algo.Batch) torch.Tensor {
	loss := objective(s, b, func(x *rl.Sample, probs []float32) (float64, []float64) {
		d := &a.Cases[x.Prompt]
		value, grad := a.value(d.Question.Type, a.smooth(d.Target), probs)
		return -value, grad
	})
	b.Note(s, "loss", loss)
	return loss
}

// smooth mixes a target with the uniform distribution.
func (a *Supervised) smooth(target []float64) []float64 {
	if a.Smoothing == 0 {
		return target
	}
	out := make([]float64, len(target))
	for k, t := range target {
		out[k] = (1-a.Smoothing)*t + a.Smoothing/float64(len(target))
	}
	return out
}

// value is the loss of an answer, and the negative of its gradient with respect to the probabilities.
func (a *Supervised) value(kind string, target []float64, probs []float32) (loss float64, grad []float64) {
	switch {
	case a.Kind == "cross_entropy":
		grad = make([]float64, len(probs))
		for k, t := range target {
			if t > 0 {
				p := max(float64(probs[k]), math.SmallestNonzeroFloat32)
				loss -= t * math.Log(p)
				grad[k] = t / p
			}
		}
		return loss, grad
	case a.Kind == "ranked" && kind == decision.Score && len(probs) > 1:
		return ranked(target, probs)
	}
	return brier(target, probs)
}

// brier is Σ_k (p_k − t_k)², and the negative of its gradient.
func brier[P float32 | float64](target []float64, probs []P) (loss float64, grad []float64) {
	grad = make([]float64, len(probs))
	for k, t := range target {
		d := float64(probs[k]) - t
		loss += d * d
		grad[k] = -2 * d
	}
	return loss, grad
}

// ranked is Σ_j (Σ_{k≤j} p_k − t_k)²/(C − 1), and the negative of its gradient.
func ranked[P float32 | float64](target []float64, probs []P) (loss float64, grad []float64) {
	grad = make([]float64, len(probs))
	steps := float64(len(probs) - 1)
	below := 0.0
	for j := range len(probs) - 1 {
		below += float64(probs[j]) - target[j]
		loss += below * below / steps
		for k := range j + 1 {
			grad[k] -= 2 * below / steps
		}
	}
	return loss, grad
}

// objective is −mean J over the samples of a minibatch, where of gives the value of J and its gradient with respect to the
// probabilities of a sample's options. Go computes both; the tensor has that value and that gradient: it is −Σ π·g, shifted
// by a constant. With respect to log π the gradient is π·g, so a slope of t/π loses nothing for small π.
func objective(s *torch.Scope, b *algo.Batch, of func(x *rl.Sample, probs []float32) (float64, []float64)) torch.Tensor {
	logProbs := s.Read(b.Labels)
	width := len(logProbs) / len(b.Part)
	slope := make([]float32, len(logProbs))
	total, linear := 0.0, 0.0
	for i, x := range b.Part {
		row := logProbs[i*width : i*width+len(x.Options)]
		probs := exps(row)
		value, grad := of(x, probs)
		if math.IsNaN(value) || math.IsInf(value, 0) {
			continue // missing data
		}
		total += value
		for k, g := range grad {
			slope[i*width+k] = float32(g * float64(probs[k]))
			linear += float64(slope[i*width+k]) * float64(row[k])
		}
	}
	product := s.Sum(s.Mul(b.Labels, s.Floats(slope, s.Shape(b.Labels)...)))
	return s.Scale(s.Shift(s.Neg(product), linear-total), 1/b.Samples)
}

// exps are the probabilities of log-probabilities.
func exps(logProbs []float32) []float32 {
	probs := make([]float32, len(logProbs))
	for k, l := range logProbs {
		probs[k] = float32(math.Exp(float64(l)))
	}
	return probs
}

// Exact raises the expected reward by its exact gradient over all options:
//
//	L = −mean_x Σ_a π(a|x)·R(a, π)
//
// Of a row with the reward of one option alone, the answer is replaced by Observed.
type Exact struct {
	Rewards *Rewards
	Clip    algo.Clip // of the ratio in the figures; the loss has none
	// Chosen has the samples learn from the reward of their own action alone.
	Chosen bool
}

// Check implements algo.Algorithm.
func (a *Exact) Check(int) error { return nil }

// Needs implements algo.Algorithm.
func (a *Exact) Needs() algo.Needs {
	return algo.Needs{Rewards: true, Ratio: algo.ActionRatio, Clip: a.Clip, Labels: true}
}

// Prepare implements algo.Algorithm.
func (a *Exact) Prepare(step *rl.Step) error {
	for _, x := range step.Samples {
		x.Fill(0)
	}
	return nil
}

// Loss implements algo.Algorithm.
func (a *Exact) Loss(s *torch.Scope, b *algo.Batch) torch.Tensor {
	return objective(s, b, func(x *rl.Sample, probs []float32) (float64, []float64) {
		return a.Rewards.Objective(x.Prompt, a.Rewards.seen(x.Prompt, a.feedback(x), probs), probs)
	})
}

// feedback is what is seen of a sampled option: whether it was right.
func (a *Exact) feedback(x *rl.Sample) *envs.Feedback {
	d := &a.Rewards.cases[x.Prompt]
	if !a.Chosen || d.Target == nil {
		return nil
	}
	chosen := int(x.Actions[0])
	return &envs.Feedback{Chosen: chosen, Reward: d.Target[chosen], Probability: math.Exp(float64(x.BehaviorLogProbs[0]))}
}
