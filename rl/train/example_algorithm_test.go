package train_test

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
)

// plusPlus is REINFORCE++ with a baseline (Hu et al. 2025): rewards minus their group mean, whitened over the step,
// with PPO's clipped surrogate. The struct's fields are its options.
type plusPlus struct {
	algo.Clip `defaults:"clip_high=0.28"`
}

// In your program, this init makes --algorithm reinforce_pp available, with its options.
func init() {
	algo.Register(algo.Definition{
		Name: "reinforce_pp", Help: "REINFORCE++ with a baseline", Tokens: true,
		New: func() algo.Algorithm { return &plusPlus{} },
	})
}

var lessTheMean = rl.Advantages{Baseline: rl.BaselineGroup, Scale: rl.ScaleNone}

func (a *plusPlus) Check(samples int) error { return lessTheMean.Check(samples) }

func (a *plusPlus) Needs() algo.Needs {
	return algo.Needs{Rewards: true, Ratio: algo.ActionRatio, Clip: a.Clip}
}

func (a *plusPlus) Prepare(step *rl.Step) error {
	advantages := lessTheMean.Of(step.Penalised(), step.Rewards(), nil)
	var all []float32
	for _, group := range advantages {
		for _, a := range group {
			all = append(all, float32(a))
		}
	}
	rl.Whiten(all)
	for _, group := range advantages {
		for i := range group {
			group[i], all = float64(all[0]), all[1:]
		}
	}
	step.Spread(advantages)
	return nil
}

func (a *plusPlus) Loss(s *torch.Scope, b *algo.Batch) torch.Tensor {
	ratio := s.Exp(s.Sub(b.LogProbs, b.Old))
	clipped := s.Clamp(ratio, 1-a.Low, 1+a.High)
	surrogate := s.Minimum(s.Mul(ratio, b.Advantage), s.Mul(clipped, b.Advantage))
	return s.Neg(s.Sum(s.Mul(b.Weight, surrogate)))
}

// A custom algorithm is a type with options, an advantage function and a loss, registered by name like the built-in
// ones.
func ExampleRegister() {
	trainTiny(&vowelThenDigit{}, get(algo.Find("reinforce_pp")).New(), 0.01, train.Updates{Epochs: 2})
	// Output:
	// right before: 0 %, at best: 100 %
}
