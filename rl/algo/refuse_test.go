package algo

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/rl/run"
)

func TestTrainRefuses(t *testing.T) {
	p := newTable(t, 1)
	clip := Clip{0.2, 0.2}
	for _, test := range []struct {
		want      string
		algorithm Algorithm
		change    func(c *Config)
	}{
		{"0 steps", newGRPO(), func(c *Config) { c.Steps = 0 }},
		{"no ratio", newReinforce(), func(c *Config) { c.Epochs = 2 }},
		{"no ratio", newReinforce(), func(c *Config) { c.Minibatches = 2 }},
		{"no ratio", newReinforce(), func(c *Config) { c.MinibatchSize = 2 }},
		{"no ratio", &SFT{}, func(c *Config) { c.Epochs = 2 }},
		{"at least 2", newRLOO(), func(c *Config) { c.Samples = 1 }},
		{"at least 2", newGRPO(), func(c *Config) { c.Samples = 1 }},
		{"cannot be divided", &Reinforce{Baseline: "moving", Scale: "group"}, nil},
		{"reduction \"bnpo\"", &GRPO{Clip: clip, Reduction: Reduction{"bnpo"}}, nil},
		{"longest answer", &GRPO{Clip: clip, Reduction: Reduction{"dr_grpo"}}, nil},
		{"clip range", &GRPO{Clip: Clip{0, 0.2}}, nil},
		{"clip range", &RLOO{Clip{1, 0.2}}, nil},
		{"clip range", &PPO{Clip: Clip{0.2, 0}, ValueCoef: 1}, nil},
		{"gamma 2", &PPO{Clip: clip, Gamma: 2, ValueCoef: 1}, nil},
		{"value coefficient 0", &PPO{Clip: clip}, nil},
		{"which is empty", &Stable{Returns{11, 10}, 0}, nil},
		{"decay 1", &Reinforce{Decay: 1}, nil},
		{"kl_type k1 as a loss", newGRPO(), func(c *Config) { c.KLCoef, c.KLType = 1, "k1" }},
		{"KL estimator \"k4\"", newGRPO(), func(c *Config) { c.KLCoef, c.KLType = 1, "k4" }},
		{"another model for a reference", newGRPO(), func(c *Config) { c.Reference, c.ReferenceEvery = p, 2 }},
		{"an adaptive coefficient", newGRPO(), func(c *Config) { c.KLTarget, c.KLHorizon = 1, 1 }},
		{"schedule \"step\"", newGRPO(), func(c *Config) { c.Schedule = "step" }},
	} {
		c := Config{Steps: 3, Samples: 4, Optimisation: Optimisation{Schedule: "linear"}}
		if test.change != nil {
			test.change(&c)
		}
		if _, err := New(p, fixed(tokenStep), test.algorithm, c, run.Hooks{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%T: error %v, want %q", test.algorithm, err, test.want)
		}
	}
}
