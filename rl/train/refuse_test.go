package train

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/run"
)

func TestTrainRefuses(t *testing.T) {
	p := newTable(t, 1)
	clip := algo.Clip{Low: 0.2, High: 0.2}
	sync := ReferenceSync{Sync: true, Alpha: 0.5, Every: 2}
	for _, test := range []struct {
		want      string
		algorithm algo.Algorithm
		change    func(c *Config)
	}{
		{"steps 0", newGRPO(), func(c *Config) { c.Steps = 0 }},
		{"no ratio", newReinforce(), func(c *Config) { c.Epochs = 2 }},
		{"no ratio", newReinforce(), func(c *Config) { c.Minibatches = 2 }},
		{"no ratio", newReinforce(), func(c *Config) { c.MinibatchSize = 2 }},
		{"at least 2", newRLOO(), func(c *Config) { c.Samples = 1 }},
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
		{"kl_in_reward", &algo.RFT{Keep: "best"}, func(c *Config) { c.KLCoef, c.KLType, c.KLInReward = 1, "k1", true }},
		{"top_entropy_quantile", newRLOO(), func(c *Config) { c.TopEntropy = 0.5 }},
		{"entropy_coef_max", newGRPO(), func(c *Config) { c.EntropyControl = EntropyControl{Adaptive: true, Min: 2, Max: 1} }},
		{"kl_type k1", newGRPO(), func(c *Config) { c.KLCoef, c.KLType = 1, "k1" }},
		{"KL estimator \"k4\"", newGRPO(), func(c *Config) { c.KLCoef, c.KLType = 1, "k4" }},
		{"another model", newGRPO(), func(c *Config) { c.Reference, c.ReferenceEvery = p, 2 }},
		{"another model", newGRPO(), func(c *Config) { c.Reference, c.KLCoef, c.ReferenceSync = p, 1, sync }},
		{"sync_ref_model needs a reference", newGRPO(), func(c *Config) { c.ReferenceSync = sync }},
		{"both change the reference", newGRPO(), func(c *Config) { c.KLCoef, c.ReferenceEvery, c.ReferenceSync = 1, 2, sync }},
		{"ref_model_mixup_alpha 0", newGRPO(), func(c *Config) { c.KLCoef, c.ReferenceSync = 1, ReferenceSync{Sync: true, Every: 2} }},
		{"an adaptive coefficient", newGRPO(), func(c *Config) { c.KLTarget, c.KLHorizon = 1, 1 }},
		{"schedule \"step\"", newGRPO(), func(c *Config) { c.Schedule = "step" }},
	} {
		c := Config{Steps: 3, Samples: 4, Optimisation: Optimisation{Schedule: "linear"}}
		if test.change != nil {
			test.change(&c)
		}
		expect.Failure(New(p, fixed(tokenStep), test.algorithm, c, run.Hooks{}))(t, test.want)
	}
	scaled := algo.New[algo.GRPO]()
	scaled.Scale = "mean"
	tr := must.Open(New(p, fixed(signalStep([4]float64{0, -1, 0, 0}, false)), scaled, Config{Steps: 3, Samples: 2, Optimisation: Optimisation{Schedule: "linear"}}, run.Hooks{}))(t)
	expect.Failure(tr.Step(t.Context()))(t, "step 1: advantage_scale mean … -1")
	unreadable := func(at int) *rl.Step {
		step := signalStep([4]float64{0, 1, 0, 0}, false)(at)
		step.Samples[0].Tokens = []int32{1, 1 << 30, 2}
		step.Samples[0].Rows = []int{1}
		return step
	}
	scored := must.Open(New(tinyToken(t, 4), fixed(unreadable), newPPO(), Config{Steps: 3, Samples: 2, Optimisation: Optimisation{Schedule: "linear"}}, run.Hooks{}))(t)
	expect.Failure(scored.Step(t.Context()))(t, "step 1: … 1073741824")
}

// TestRanksBeginAlike: a rank with another row, or with other weights, ends the run.
func TestRanksBeginAlike(t *testing.T) {
	for want, differ := range map[string]struct{ row, weights bool }{
		"other training rows": {row: true},
		"other weights":       {weights: true},
	} {
		groups, errs := disttest.Groups(t, 2), make([]error, 2)
		disttest.Each(2, func(rank int) {
			p := tinyToken(t, 0)
			sample := &rl.Sample{Tokens: []int32{1, 2, 3}, Rows: []int{0, 1}, Actions: []int32{2, 3}}
			if rank == 1 && differ.row {
				sample.Actions[1] = 4
			}
			if rank == 1 && differ.weights {
				x := must.Get(p.Params()[0].Read())(t)
				x[0]++
				must.Do(t, p.Params()[0].Write(x))
			}
			h := (&recorded{}).hooks()
			h.Group = groups[rank]
			_, errs[rank] = Run(t.Context(), p, must.Get(epochs.New([]*rl.Sample{sample}, 1, 0, 1))(t), &algo.SFT{}, Config{Steps: 1, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}}, h)
		})
		for _, err := range errs {
			expect.Error(t, err, "rank 1", want)
		}
	}
}

func TestAlgorithmsAreFoundByName(t *testing.T) {
	fits := map[string][2]bool{}
	for _, d := range algo.Definitions() {
		fits[d.Name] = [2]bool{d.Fits(tinyLabel(t)), d.Fits(newTable(t, 1))}
		again, err := algo.Find(d.Name)
		expect.True(t, err == nil && again.Name == d.Name, "%s is found as %s: %v", d.Name, again.Name, err)
		needsMore := d.Name == "distill" // a teacher
		err = d.New().Check(4)
		expect.True(t, d.Help != "" && (err != nil) == needsMore, "%s: help %q; with its defaults: %v", d.Name, d.Help, err)
	}
	want := map[string][2]bool{"dqn": {true, false}}
	for _, both := range []string{"a2c", "grpo", "ppo", "reinforce", "rloo"} {
		want[both] = [2]bool{true, true}
	}
	for _, tokens := range []string{"cispo", "clip_cov", "distill", "dpo", "dppo", "gmpo", "gpg", "gspo", "kl_cov", "reinforce++", "reinforce_pp", "reinforce_replay", "reinforce_replay_kl", "reinforce_replay_nll", "rft", "sapo", "vespo"} {
		want[tokens] = [2]bool{false, true}
	}
	expect.Equal(t, want, fits, "algorithms for labels and tokens, an example's among them")
	_, err := algo.Find("gprpo")
	expect.True(t, err != nil && strings.Contains(err.Error(), `"gprpo"`) && strings.HasSuffix(err.Error(), "did you mean grpo?"), "error %v, want the name and the nearest known one", err)
	for _, d := range []algo.Definition{{Name: "grpo", New: newGRPO}, {Name: "empty"}, {New: newGRPO}} {
		expect.Panic(t, func() { algo.Register(d) }, d.Name)
	}
}
