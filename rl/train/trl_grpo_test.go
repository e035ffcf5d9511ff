package train

import (
	"fmt"
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// trlGRPO is the content of testdata/trl_grpo.json, written by scripts/fixtures/grpo.py.
type trlGRPO struct {
	Rows []struct {
		Prompt, Completion []int32
		Advantage          float32
		Old, Reference     []float32
		Truncated          bool
	}
	Longest int
	Cases   []trlCase
}

// trlCase is a setting of TRL with its results.
type trlCase struct {
	LossType          string `json:"loss_type"`
	Beta              float64
	Corrected, Masked bool
	ClipLow           float64 `json:"clip_low"`
	ClipHigh          float64 `json:"clip_high"`
	Level             string
	Delta             float64
	Quantile, Coef    float64
	Adaptive          *struct{ Target, Last float64 }
	NextCoef          float64 `json:"next_coef"` // after the update
	Entropy           float64 // of the update, with Adaptive
	Loss              float64
	GradientNorm      float64 `json:"gradient_norm"`
	Gradient          []float64
}

// objective is the algorithm that TRL's options name.
func (c *trlCase) objective() algo.Algorithm {
	clip, two := algo.Clip{Low: c.ClipLow, High: c.ClipHigh}, algo.TwoSided{Delta: c.Delta}
	reduction := algo.Reduction{Reduction: map[string]string{"grpo": algo.ReduceSequence, "dr_grpo": algo.ReduceDrGRPO, "luspo": algo.ReduceSum}[c.LossType]}
	switch {
	case c.Level == "sequence":
		return &algo.GSPO{Clip: clip, Reduction: reduction}
	case c.LossType == "cispo":
		return &algo.CISPO{Cap: c.ClipHigh}
	case c.LossType == "sapo":
		return algo.New[algo.SAPO]()
	case c.LossType == "vespo":
		return algo.New[algo.VESPO]()
	case c.LossType == "gmpo":
		return &algo.GMPO{Low: c.ClipLow, High: c.ClipHigh}
	}
	return &algo.GRPO{Clip: clip, TwoSided: two, Reduction: reduction}
}

// TestGRPOAsTRL compares loss and gradient with TRL's on the same model and completions: GRPO for each way of averaging, and
// the objectives that TRL has besides, with and without the KL, its correction, completions that were cut off and masked, the
// tokens of the highest entropy alone, and an entropy bonus whose coefficient adapts.
func TestGRPOAsTRL(t *testing.T) {
	torchtest.NoLeaks(t)
	var want trlGRPO
	must.Do(t, files.LoadJSON("testdata/trl_grpo.json", &want))
	for _, c := range want.Cases {
		t.Run(fmt.Sprintf("%s by %s, delta %g, beta %g, corrected %v, masked %v, top %g, entropy %g %v", c.LossType, c.Level, c.Delta, c.Beta, c.Corrected, c.Masked, c.Quantile, c.Coef, c.Adaptive), func(t *testing.T) {
			p := must.Open(policy.NewCausalLM(policy.Config{Dir: policytest.Fixture(t, "causal/llama"), Full: true}))(t)
			step := &rl.Step{Figures: rl.Meter{}}
			for i, row := range want.Rows {
				x := answered(i, 0, row.Prompt, row.Completion, 0)
				x.Old, x.Reference = row.Old, row.Reference
				for range x.Actions {
					x.Advantage = append(x.Advantage, row.Advantage)
				}
				if row.Truncated && c.Masked {
					step.Masked++
				} else {
					step.Samples = append(step.Samples, x)
				}
			}
			a := c.objective()
			config := Config{Steps: 1, Samples: 2, Longest: want.Longest, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant"}, Regularisation: Regularisation{KLCoef: c.Beta, KLType: string(rl.K3), KLCorrection: c.Corrected, EntropyCoef: c.Coef}, Uncertain: Uncertain{TopEntropy: c.Quantile}}
			if c.Adaptive != nil {
				config.EntropyControl = EntropyControl{Adaptive: true, Target: c.Adaptive.Target, Delta: 0.005, Max: 1}
			}
			trainer := must.Open(New(p, fixed(func(int) *rl.Step { return step }), a, config, (&recorded{}).hooks()))(t)
			trainer.updater.masked = float64(step.Masked) / float64(len(step.Samples))
			if c.Adaptive != nil {
				trainer.state.Entropy = &entropyState{Coef: c.Coef, Last: c.Adaptive.Last}
			}
			u := must.Get(trainer.updater.gradient(step.Samples))(t)
			near := func(what string, got, want float64) {
				expect.True(t, math.Abs(got-want) <= 1e-5*(1+math.Abs(want)), "%s %v, TRL has %v", what, got, want)
			}
			if c.LossType != "gmpo" || !c.Masked { // TRL's loss counts −A of masked completions there
				near("loss", u.figures["loss"], c.Loss)
			}
			if trainer.adaptEntropy(u.certainty()); c.Adaptive != nil {
				near("mean entropy", trainer.state.Entropy.Last, c.Entropy)
				near("next coefficient", trainer.state.Entropy.Coef, c.NextCoef)
			}
			nearGradient(t, p, near, c.GradientNorm, c.Gradient)
		})
	}
}
