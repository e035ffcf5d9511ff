package algo_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"rltrain/rl"
	"rltrain/rl/algo"
	"rltrain/torch"
)

// REINFORCE++ with a baseline (Hu et al. 2025): rewards less the mean of their group, then whitened over the
// whole batch, and the clipped surrogate of PPO on them. In the program's own folder this init makes
// --algorithm reinforce_pp work, with --clip-low, --update-epochs and the other options of a ratio.
func init() {
	algo.Register(algo.Algorithm{
		Name: "reinforce_pp", Ratio: algo.TokenRatio,
		Advantages: func(_ algo.TokenRLConfig, step *algo.Step) {
			advantages := rl.Advantages{Baseline: rl.BaselineGroup, Scale: rl.ScaleNone}.Of(step.Rewards, nil)
			var all []float32
			for _, group := range advantages {
				for _, a := range group {
					all = append(all, float32(a))
				}
			}
			rl.Whiten(all)
			for g := range advantages {
				for i := range advantages[g] {
					advantages[g][i] = float64(all[0])
					all = all[1:]
				}
			}
			step.Spread(advantages)
		},
		Loss: func(s *torch.Scope, b *algo.LossBatch, c algo.TokenRLConfig) torch.Tensor {
			ratio := s.Exp(s.Sub(b.LogProb, b.Old))
			clipped := s.Clamp(ratio, 1-c.ClipLow, 1+c.ClipHigh)
			surrogate := s.Minimum(s.Mul(ratio, b.Advantage), s.Mul(clipped, b.Advantage))
			return s.Neg(s.Sum(s.Mul(b.Weight, surrogate)))
		},
	})
}

// An algorithm of one's own is registered by name, as those that are built in are.
func ExampleRegister() {
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	model := filepath.Join(dir, "tiny")
	check(algo.TinyModel(model, 2, 32, 1))
	policy := must(algo.NewTokenPolicy(algo.TokenPolicyConfig{Dir: model, Full: true}))
	defer policy.Close()
	result := must(algo.TokenRL(context.Background(), policy, vowelThenDigit{}, algo.TokenRLConfig{
		Algorithm: "reinforce_pp", Steps: 25, PromptsPerStep: 4, SamplesPerPrompt: 16, UpdateEpochs: 2, Minibatches: 2,
		ClipLow: 0.2, ClipHigh: 0.28, LearningRate: 0.01, MaxGradNorm: 1, Schedule: "constant", Temperature: 1, MaxNew: 1,
		EvalSamples: 4, EvalEvery: 5, Seed: 1,
	}, algo.Hooks{}))
	fmt.Printf("right before: %.0f %%, at best: %.0f %%\n", 100*result.Before.Accuracy, 100*result.Best.Accuracy)
	// Output:
	// right before: 0 %, at best: 100 %
}
