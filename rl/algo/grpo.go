package algo

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// GRPO compares the samples of a prompt with each other (Shao et al. 2024, equations 3 and 4): with the advantage
// A = (r − mean)/(std + 1e-4) over the samples of the prompt and ρ = π/π_old of each action,
//
//	L = −Σ w·min(ρA, clip(ρ, 1−low, 1+high)·A)
//
// The trainer adds the KL to a reference.
type GRPO struct {
	Scale string `option:"advantage_scale" default:"auto" allowed:"auto,none,group,batch" help:"standard deviation that divides the advantages: of the prompt's samples (group), of the batch, or none; auto = none for reinforce, group for grpo"`
	Reduction
	Clip
}

func init() {
	Register(Definition{Name: "grpo", Help: "samples of a prompt compared with each other (GRPO; its options give Dr. GRPO and DAPO)", Labels: true, Tokens: true,
		New: func() Algorithm { return &GRPO{} }})
}

func (a *GRPO) advantages() rl.Advantages {
	by := rl.Advantages{Baseline: rl.BaselineGroup, Scale: rl.ScaleGroup}
	if a.Scale != "" && a.Scale != "auto" {
		by.Scale = rl.Scale(a.Scale)
	}
	return by
}

// Check implements Algorithm.
func (a *GRPO) Check(samples int) error { return a.advantages().Check(samples) }

// Needs implements Algorithm.
func (a *GRPO) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: a.Clip, Reduction: a.Reduction.or(ReduceToken), ByAdvantage: true}
}

// Prepare implements Algorithm.
func (a *GRPO) Prepare(step *rl.Step) error {
	compare(step, a.advantages(), nil)
	return nil
}

// Loss implements Algorithm.
func (a *GRPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	return surrogateLoss(s, b.LogProbs, b.Old, b.Advantage, b.Weight, a.Clip)
}

// surrogateLoss is −Σ w·min(ρA, clip(ρ)·A) with ρ = exp(logProbs − old) (Schulman et al. 2017, equation 7). All [M].
func surrogateLoss(s *torch.Scope, logProbs, old, advantage, weight torch.Tensor, c Clip) torch.Tensor {
	ratio := s.Exp(s.Sub(logProbs, old))
	clipped := s.Clamp(ratio, 1-c.Low, 1+c.High)
	return s.Neg(s.Sum(s.Mul(weight, s.Minimum(s.Mul(ratio, advantage), s.Mul(clipped, advantage)))))
}
