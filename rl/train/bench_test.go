package train

import (
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
)

// supervisedStep returns a repeatable step of supervised training on examples.
func supervisedStep(t testing.TB, p *policy.Classifier, examples policy.Examples) func() {
	t.Helper()
	source := must.Get(epochs.New(examples.Samples(), examples.Len(), 0, 1))(t)
	tr := must.Open(New(p, source, &algo.SFT{}, Config{Steps: 1 << 30, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant", MaxGradNorm: 1}}, run.Hooks{LogEvery: 1 << 20}))(t)
	return func() {
		must.Get(tr.Step(t.Context()))(t)
	}
}

// BenchmarkSFTStep is a step of a tiny policy, where overhead exceeds arithmetic.
func BenchmarkSFTStep(b *testing.B) {
	step := supervisedStep(b, tinyLabel(b), tinyExamples(8, 1))
	for b.Loop() {
		step()
	}
}

// BenchmarkPPOStep is a rollout of 8 texts with 4 updates.
func BenchmarkPPOStep(b *testing.B) {
	p, train := tinyLabel(b), tinyExamples(8, 1)
	source := must.Get(rollout.NewLabels(p, nil, train, labelRewards(b, "accuracy"), rollout.LabelsConfig{
		LabelOptions: rollout.LabelOptions{BufferSize: 8, BatchSize: 8}, Steps: 1, Values: true, Seed: 1,
	}))(b)
	tr := must.Get(New(p, source, newPPO(), Config{
		Steps: 1 << 30, MinibatchSize: 8, Updates: Updates{Epochs: 4}, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant", MaxGradNorm: 1},
	}, run.Hooks{}))(b)
	defer tr.Close()
	for b.Loop() {
		must.Get(tr.Step(b.Context()))(b)
	}
}
