package train

import (
	"math"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestOlderVersionsAreNotTheSamplersError: the mismatch between sampler and trainer is measured only on samples of the
// current weights; older versions are expected to differ.
func TestOlderVersionsAreNotTheSamplersError(t *testing.T) {
	of := func(version uint64, old, drawn float32) *rl.Sample {
		return &rl.Sample{Actions: []int32{1}, Version: version, Old: []float32{old}, BehaviorLogProbs: []float32{drawn}}
	}
	m := rl.Meter{}
	compareSampler(m, []*rl.Sample{of(7, -1, -1.25), of(7, -1, -0.25), of(6, -1, -9), {Actions: []int32{1}, Version: 7}}, 7)
	const name = "sampling/sampling_logp_difference/"
	mean, most := m.Get(name+"mean"), m.Get(name+"max")
	expect.True(t, mean == 0.5 && most == 0.75, "differences of 0.25 and 0.75 have mean %v and maximum %v", mean, most)
	older := rl.Meter{}
	compareSampler(older, []*rl.Sample{of(6, -1, -9)}, 7)
	expect.Same(t, 0, len(older), "figures of older samples alone")
}

// TestSamplerAndTrainerAgree at temperatures other than 1, in one turn and in several.
func TestSamplerAndTrainerAgree(t *testing.T) {
	for _, temperature := range []float64{1, 0.6, 1.7} {
		r := newTokenRun(newGRPO)
		r.task, r.Options.Temperature, r.Steps = spelling, temperature, 3
		var said recorded
		must.Get(r.on(t.Context(), t, trainedToken(t, 4), said.hooks()))(t)
		replayed := newReplayRun(&algo.Replay{Min: 0, Max: 10})
		replayed.ReplayOptions.Temperature, replayed.Steps = temperature, 3
		must.Get(replayed.on(t.Context(), t, trainedToken(t, 4), said.hooks()))(t)
		for i, d := range said.figure("sampling/sampling_logp_difference/max") {
			expect.True(t, d <= 1e-4, "temperature %v, row %d: sampler and trainer differ by %v", temperature, i, d)
		}
	}
}

// TestBalanceOfExperts: three tokens choose two of four experts each, in half of a minibatch.
func TestBalanceOfExperts(t *testing.T) {
	load := must.Open(torch.Parameter([]float32{2.4, 0.2, 0.2, 0.2, 2, 2, 1, 1}, 2, 4))(t)
	torchtest.Do(t, torch.Train, func(s *torch.Scope) {
		figures := map[string]float64{}
		loss := balance(s, load.T(), 0.5, figures)
		want := 0.5 * 4 * (2*2.4 + 2*0.2 + 0.2 + 0.2) / 9 // equation 4 of Fedus 2021
		expect.True(t, math.Abs(float64(s.Read(loss)[0])-want) < 1e-6, "loss %v, want %g", s.Read(loss), want)
		expect.True(t, math.Abs(figures["router_aux_loss"]-want) < 1e-6 && figures["router_max_load"] == 0.5*2*4/6, "%v", figures)
		s.Backward(loss)
		grad, _ := s.Grad(load)
		for i, g := range s.Read(grad) {
			want := []float64{2, 2, 1, 1, 0, 0, 0, 0}[i] * 0.5 * 4 / 9
			expect.True(t, math.Abs(float64(g)-want) < 1e-6, "gradient %d is %g, want %g", i, g, want)
		}
	})
}

// TestLabelSmoothingAsTransformers compares loss and gradients with LabelSmoother's, in one forward pass and in several.
func TestLabelSmoothingAsTransformers(t *testing.T) {
	torchtest.NoLeaks(t)
	want := must.Into[struct {
		Rows  []struct{ Prompt, Completion []int32 }
		Cases []struct {
			Epsilon, Loss  float64
			Gradient, Head []float64
		}
	}](t, files.LoadJSON, "testdata/label_smoothing.json")
	for _, c := range want.Cases {
		for _, limit := range []int{0, 10} {
			p := must.Open(policy.NewCausalLM(policy.Config{Dir: policytest.Fixture(t, "causal/llama"), Full: true}))(t)
			var samples []*rl.Sample
			for i, row := range want.Rows {
				x := answered(i, 0, row.Prompt, row.Completion, 0)
				x.Reference = nil
				samples = append(samples, x)
			}
			config := Config{Steps: 1, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant"}, Memory: Memory{MicroTokens: limit}}
			trainer := must.Open(New(p, fixed(nil), &algo.SFT{Smoothing: algo.Smoothing{Factor: c.Epsilon}}, config, (&recorded{}).hooks()))(t)
			u := must.Get(trainer.updater.gradient(samples))(t)
			near := func(what string, got, want float64) {
				expect.True(t, math.Abs(got-want) <= 1e-5*(1+math.Abs(want)), "epsilon %g, %d tokens a pass: %s %v, transformers has %v", c.Epsilon, limit, what, got, want)
			}
			near("loss", u.figures["loss"], c.Loss)
			grad, head := gradientOf(t, p, 24, 40), gradientOf(t, p, 61, 24)
			for i, g := range c.Gradient {
				near("gradient", float64(grad[i]), g)
			}
			for i, g := range c.Head {
				near("gradient of the head", float64(head[i]), g)
			}
		}
	}
}

// TestNoiseIsOfTrainingAlone: noise and dropout move the loss that is trained on, and differ from step to step; an evaluation has none.
func TestNoiseIsOfTrainingAlone(t *testing.T) {
	losses := map[string]float64{}
	for name, c := range map[string]struct {
		p     *policy.CausalLM
		alpha float64
	}{"none": {tinyToken(t, 4), 0}, "noise": {tinyToken(t, 4), 20}, "dropout": {trainedToken(t, 4), 0}} {
		samples := policy.Samples(texts(3))
		config := Config{Steps: 1, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant"}}
		trainer := must.Open(New(c.p, fixed(nil), &algo.SFT{Noise: c.alpha}, config, (&recorded{}).hooks()))(t)
		before := must.Get(evaluate.Loss(c.p, samples, 1).Run(t.Context(), 0))(t).Score
		losses[name] = must.Get(trainer.updater.gradient(samples))(t).figures["loss"]
		trainer.state.Step++
		next := must.Get(trainer.updater.gradient(samples))(t).figures["loss"]
		expect.True(t, (math.Abs(next-losses[name]) > 1e-4) == (name != "none"), "%s: losses %v and %v of two steps", name, losses[name], next)
		expect.Same(t, before, must.Get(evaluate.Loss(c.p, samples, 1).Run(t.Context(), 0))(t).Score, "%s: score of an evaluation", name)
	}
	expect.True(t, math.Abs(losses["none"]-losses["noise"]) > 1e-3, "losses are %v", losses)
}

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
		{"needs a teacher", &algo.Distill{Teacher: "given"}, nil},
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
		{"ref_model_mixup_alpha 1.5", newGRPO(), func(c *Config) { c.KLCoef, c.ReferenceSync = 1, ReferenceSync{Sync: true, Alpha: 1.5, Every: 2} }},
		{"ref_model_sync_steps 0", newGRPO(), func(c *Config) { c.KLCoef, c.ReferenceSync = 1, ReferenceSync{Sync: true, Alpha: 1} }},
		{"importance_sampling_max: 1 must be above importance_sampling_min, 1", newGRPO(), func(c *Config) { c.OffPolicy = OffPolicy{Low: 1, High: 1} }},
		{"router_aux_loss_coef", newGRPO(), func(c *Config) { c.RouterCoef = 0.1 }},
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

// needing is an algorithm with other needs.
type needing struct {
	algo.SFT
	needs algo.Needs
}

// Needs implements algo.Algorithm.
func (n *needing) Needs() algo.Needs { return n.needs }

// TestDistantPolicies: a policy on a service allows what needs no more than log π.
func TestDistantPolicies(t *testing.T) {
	for _, test := range []struct {
		option string // "" = allowed
		needs  algo.Needs
		config Config
	}{
		{"", algo.Needs{}, Config{}},
		{"", algo.Needs{Teacher: "given", Sampled: true}, Config{Temperature: 1, Uncertain: Uncertain{1}, Optimisation: Optimisation{Optim: "adamw"}}},
		{"algorithm", algo.Needs{Values: true}, Config{}},
		{"algorithm", algo.Needs{Labels: true}, Config{}},
		{"algorithm", algo.Needs{Scores: true}, Config{}},
		{"algorithm", algo.Needs{Teacher: "given"}, Config{}},
		{"teacher", algo.Needs{Teacher: algo.TeacherSelf, Sampled: true}, Config{}},
		{"neftune_noise_alpha", algo.Needs{Noise: 0.1}, Config{}},
		{"entropy_coef", algo.Needs{}, Config{Regularisation: Regularisation{EntropyCoef: -0.1}}},
		{"use_adaptive_entropy", algo.Needs{}, Config{Regularisation: Regularisation{EntropyControl: EntropyControl{Adaptive: true}}}},
		{"top_entropy_quantile", algo.Needs{}, Config{Uncertain: Uncertain{0.9}}},
		{"router_aux_loss_coef", algo.Needs{}, Config{Optimisation: Optimisation{RouterCoef: 0.1}}},
		{"optim", algo.Needs{}, Config{Optimisation: Optimisation{Optim: OptimMuon}}},
		{"sync_ref_model", algo.Needs{}, Config{Regularisation: Regularisation{ReferenceSync: ReferenceSync{Sync: true}}}},
		{"ref_update_every", algo.Needs{}, Config{ReferenceEvery: 1}},
		{"temperature", algo.Needs{}, Config{Temperature: 0.9}},
	} {
		err := CheckDistant(&needing{needs: test.needs}, test.config)
		if test.option == "" {
			expect.NoError(t, err, "what a service can do")
		} else {
			expect.Error(t, err, "option "+test.option+": cannot be combined with a policy on a service (--engine): ")
		}
	}
}

// TestQuantile is torch.quantile's.
func TestQuantile(t *testing.T) {
	for q, want := range map[float64]float64{0: 1, 0.25: 1.5, 0.5: 2, 0.75: 3.5, 1: 5} {
		expect.Same(t, want, quantile([]float64{5, 1, 2}, q), "quantile %v", q)
	}
	expect.Same(t, 7, quantile([]float64{7}, 0.5), "quantile of one value")
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
