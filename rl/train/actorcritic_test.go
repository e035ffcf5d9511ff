package train

import (
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// oneStep returns the weights of a table policy after steps of an algorithm.
func oneStep(t *testing.T, a algo.Algorithm, samples func(step int) *rl.Step, steps int) []float32 {
	t.Helper()
	torchtest.NoLeaks(t)
	p := newTable(t, 1)
	trainer := must.Get(New(p, fixed(samples), a, Config{
		Steps: 3, Optimisation: Optimisation{LearningRate: 0.05, Schedule: "constant", MaxGradNorm: 0.1}, ValueRate: 0.08, Seed: 3,
	}, (&recorded{}).hooks()))(t)
	defer trainer.Close()
	for range steps {
		must.Get(trainer.Step(t.Context()))(t)
	}
	return slices.Concat(weightsOf(t, p)...)
}

// TestA2CIsPPOWithoutItsGuards: with one update per rollout and no clipping, the ratio is 1 and its gradient that of
// log π, so both take the same step.
func TestA2CIsPPOWithoutItsGuards(t *testing.T) {
	for name, samples := range map[string]func(step int) *rl.Step{"tokens": tokenStep, "labels": labelStep} {
		a2c := oneStep(t, &algo.A2C{Gamma: 0.9, Lambda: 0.8, ValueCoef: 0.6}, samples, 3)
		ppo := oneStep(t, &algo.PPO{Clip: algo.Clip{Low: 0.999, High: 1e6}, Gamma: 0.9, Lambda: 0.8, ValueCoef: 0.6}, samples, 3)
		if e := torchtest.RelativeError(a2c, ppo); !(e < 1e-6) {
			t.Errorf("%s: the weights are %.2g of themselves apart", name, e)
		}
	}
}
