package algo

import (
	"errors"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// GRPO compares the samples of a prompt with each other (Shao et al. 2024, equations 3 and 4): with the advantage
// A = (r − mean)/(std + 1e-4) over the samples of the prompt and ρ = π/π_old of each action,
//
//	L = −Σ w·min(min(ρ, δ)·A, clip(ρ, 1−low, 1+high)·A)
//
// where δ is infinite by default. With process supervision (section 4.1.3 there), the rewards of all steps of the prompt's samples
// are compared with each other, and A of an action is the sum over the steps that end at it or later.
//
// With advantage_scale mean, A = (r − mean)/mean, it is MaxRL (arXiv 2602.02710).
// The trainer adds the KL to a reference.
type GRPO struct {
	AdvantageScale
	Reduction
	Clip
	TwoSided
	Process bool `option:"process_supervision" needs:"episodes" help:"compare the rewards of all steps of a prompt's completions; the advantage of a token is the sum over the steps that end after it (steps: reward process, or lines with step_mode line)"`
}

func init() {
	Register(Definition{Name: "grpo", Help: "samples of a prompt compared with each other (GRPO; its options give Dr. GRPO, DAPO and MaxRL)", Labels: true, Tokens: true,
		New: func() Algorithm { return &GRPO{} }})
}

// Check implements Algorithm.
func (a *GRPO) Check(samples int) error {
	return errors.Join(a.AdvantageScale.Check(samples), a.TwoSided.check(a.Clip))
}

// Prepare implements Algorithm.
func (a *GRPO) Prepare(step *rl.Step) error {
	if a.Process {
		return compareSteps(step, a.group())
	}
	return a.AdvantageScale.Prepare(step)
}

// Needs implements Algorithm.
func (a *GRPO) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: a.Clip, Reduction: a.Reduction.or(ReduceToken), ByAction: true, ByAdvantage: true}
}

// Loss implements Algorithm.
func (a *GRPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	return surrogateLoss(s, b, b.Ratio(s), a.Clip, a.Delta)
}

// TwoSided bounds the ratio of actions with a negative advantage, whose loss is unbounded otherwise (Ye et al. 2019, dual-clip
// PPO; Prime Intellect 2025, INTELLECT-2): there the loss has no gradient where ρ > δ.
type TwoSided struct {
	Delta float64 `option:"delta" default:"0" range:"[0,)" help:"largest probability ratio of tokens with a negative advantage, above 1 + clip_high (two-sided clip; 0 = off)"`
}

func (t TwoSided) check(c Clip) error {
	if t.Delta != 0 && t.Delta <= 1+c.High {
		return envs.OptionErrorf("delta", "%g must be above 1 + clip_high, %g, or 0 = off", t.Delta, 1+c.High)
	}
	return nil
}

// surrogateLoss is −Σ w·min(min(ρ, δ)·A, clip(ρ)·A) (Schulman et al. 2017, equation 7), with δ = 0 without the inner minimum.
// ratio [M].
func surrogateLoss(s *torch.Scope, b *Batch, ratio torch.Tensor, c Clip, delta float64) torch.Tensor {
	clipped := s.Clamp(ratio, 1-c.Low, 1+c.High)
	if delta > 0 {
		ratio = s.Clamp(ratio, 0, delta)
	}
	return s.Neg(s.Sum(s.Mul(b.Weight, s.Minimum(s.Mul(ratio, b.Advantage), s.Mul(clipped, b.Advantage)))))
}
