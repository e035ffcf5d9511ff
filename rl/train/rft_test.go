package train

import (
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
)

// TestRFTIsSFTOnAcceptedCompletions compares the weights after several passes over a few steps.
func TestRFTIsSFTOnAcceptedCompletions(t *testing.T) {
	good := func(x *rl.Sample) bool { return x.HasReward() && x.Penalised() >= 0.6 }
	config := Config{Steps: 3, Samples: 4, Seed: 3, Optimisation: Optimisation{LearningRate: 0.05, Schedule: "constant"}, Updates: Updates{Epochs: 3}, Minibatches: 2}
	after, left := map[string]any{}, 0
	for name, a := range map[string]algo.Algorithm{"rft": &algo.RFT{MinReward: 0.6, Keep: "all"}, "sft": &repeated{}} {
		p := newTable(t, 7)
		source := fixed(func(n int) *rl.Step {
			step := tokenStep(n)
			step.Figures = rl.Meter{}
			if name == "sft" {
				var kept []*rl.Sample
				for _, x := range step.Samples {
					if good(x) {
						kept = append(kept, x)
					}
				}
				left += len(step.Samples) - len(kept)
				step.Samples = kept
			}
			return step
		})
		must.Get(Run(t.Context(), p, source, a, config, (&recorded{}).hooks()))(t)
		after[name] = weightsOf(t, p)
	}
	expect.True(t, left > 5, "only %d samples are left out", left)
	expect.Equal(t, after["sft"], after["rft"], cmpopts.EquateApprox(1e-5, 1e-6))
}

// repeated is SFT that may pass over its samples several times.
type repeated struct{ algo.SFT }

// Needs implements algo.Algorithm.
func (r *repeated) Needs() algo.Needs { return algo.Needs{Repeats: true} }
