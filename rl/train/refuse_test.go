package train

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/run"
)

func TestTrainRefuses(t *testing.T) {
	p := newTable(t, 1)
	clip := algo.Clip{Low: 0.2, High: 0.2}
	for _, test := range []struct {
		want      string
		algorithm algo.Algorithm
		change    func(c *Config)
	}{
		{"steps 0", newGRPO(), func(c *Config) { c.Steps = 0 }},
		{"no ratio", newReinforce(), func(c *Config) { c.Epochs = 2 }},
		{"no ratio", newReinforce(), func(c *Config) { c.Minibatches = 2 }},
		{"no ratio", newReinforce(), func(c *Config) { c.MinibatchSize = 2 }},
		{"no ratio", &algo.SFT{}, func(c *Config) { c.Epochs = 2 }},
		{"at least 2", newRLOO(), func(c *Config) { c.Samples = 1 }},
		{"at least 2", newGRPO(), func(c *Config) { c.Samples = 1 }},
		{"cannot be divided", &algo.Reinforce{Baseline: "moving", AdvantageScale: algo.AdvantageScale{Scale: "group"}}, nil},
		{"reduction: \"bnpo\"", &algo.GRPO{Clip: clip, Reduction: algo.Reduction{Reduction: "bnpo"}}, nil},
		{"longest completion", &algo.GRPO{Clip: clip, Reduction: algo.Reduction{Reduction: "dr_grpo"}}, nil},
		{"clip_low: 0", &algo.GRPO{Clip: algo.Clip{Low: 0, High: 0.2}}, nil},
		{"clip_low: 1", &algo.RLOO{Clip: algo.Clip{Low: 1, High: 0.2}}, nil},
		{"clip_high: 0", &algo.PPO{Clip: algo.Clip{Low: 0.2, High: 0}, ValueCoef: 1}, nil},
		{"gamma: 2", &algo.PPO{Clip: clip, Gamma: 2, ValueCoef: 1}, nil},
		{"value_coef: 0", &algo.PPO{Clip: clip}, nil},
		{"is above return_max", &algo.ReplayKL{Replay: algo.Replay{Min: 11, Max: 10}, Coef: 0}, nil},
		{"baseline_decay: 1", &algo.Reinforce{Baseline: "moving", Decay: 1}, nil},
		{"kl_type k1", newGRPO(), func(c *Config) { c.KLCoef, c.KLType = 1, "k1" }},
		{"KL estimator \"k4\"", newGRPO(), func(c *Config) { c.KLCoef, c.KLType = 1, "k4" }},
		{"another model", newGRPO(), func(c *Config) { c.Reference, c.ReferenceEvery = p, 2 }},
		{"an adaptive coefficient", newGRPO(), func(c *Config) { c.KLTarget, c.KLHorizon = 1, 1 }},
		{"schedule \"step\"", newGRPO(), func(c *Config) { c.Schedule = "step" }},
	} {
		c := Config{Steps: 3, Samples: 4, Optimisation: Optimisation{Schedule: "linear"}}
		if test.change != nil {
			test.change(&c)
		}
		expect.Failure(New(p, fixed(tokenStep), test.algorithm, c, run.Hooks{}))(t, test.want)
	}
}
