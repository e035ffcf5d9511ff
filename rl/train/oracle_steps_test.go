package train

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// oracleCases are all algorithms with their options, and the trainer's regularisers.
func oracleCases(t *testing.T) []oracleCase {
	clip := algo.Clip{Low: 0.1, High: 0.15}
	base := Config{
		Steps: 4, Optimisation: Optimisation{LearningRate: 0.05, Schedule: "linear", WeightDecay: 0.1},
		ValueRate: 0.08, HeadRate: 0.03, Temperature: 0.7, Longest: 6, Samples: 4, Memory: Memory{MicroTokens: 7}, Seed: 3,
	}
	with := func(changes ...func(c *Config)) Config {
		c := base
		for _, change := range changes {
			change(&c)
		}
		return c
	}
	twice := func(c *Config) { c.Minibatches, c.Epochs = 2, 2 }
	entropy := func(c *Config) { c.EntropyCoef = 0.05 }
	clipped := func(c *Config) { c.MaxGradNorm = 0.02 }
	kl := func(kind string, inReward bool) func(c *Config) {
		return func(c *Config) { c.KLCoef, c.KLType, c.KLInReward = 0.2, kind, inReward }
	}
	corrected := func(c *Config) { c.KLCorrection = true }
	betas := func(c *Config) { c.AdamBeta1, c.AdamBeta2, c.AdamEpsilon = 0.8, 0.95, 1e-3 }
	adaptive := func(c *Config) { c.KLTarget, c.KLHorizon = 0.3, 40 }
	drawn := func(c *Config) { c.MinibatchSize = 5 }
	uncertain := func(c *Config) { c.TopEntropy = 0.3 }
	controlled := func(target float64) func(c *Config) {
		return func(c *Config) {
			c.EntropyControl = EntropyControl{Adaptive: true, Target: target, Delta: 0.02, Min: 0.01, Max: 0.1}
		}
	}
	fast := func(c *Config) { c.LearningRate, c.HeadRate = 0.4, 0.4 }

	none := compared(func(c comparison) float64 { return c.r })
	byAll := compared(func(c comparison) float64 { return (c.r - average(c.group)) / (deviation(c.everyone) + 1e-4) })
	others := compared(func(c comparison) float64 {
		n := float64(len(c.group))
		return c.r - (n*average(c.group)-c.r)/(n-1)
	})
	batch := compared(func(c comparison) float64 { return c.r - average(c.everyone) })
	batchScaled := compared(func(c comparison) float64 { return (c.r - average(c.everyone)) / (deviation(c.everyone) + 1e-4) })
	moving := compared(func(c comparison) float64 { return c.r - c.o.moving })
	greedy := compared(func(c comparison) float64 { return c.r - c.step.Greedy[c.at] })

	reinforce := func(baseline, scale, reduction string) func() algo.Algorithm {
		return func() algo.Algorithm {
			return &algo.Reinforce{Baseline: baseline, AdvantageScale: algo.AdvantageScale{Scale: scale}, Start: 0.3, Decay: 0.7, Reduction: algo.Reduction{Reduction: reduction}}
		}
	}
	grpo := func(scale, reduction string) func() algo.Algorithm {
		return func() algo.Algorithm {
			return &algo.GRPO{AdvantageScale: algo.AdvantageScale{Scale: scale}, Reduction: algo.Reduction{Reduction: reduction}, Clip: clip}
		}
	}
	rloo := func() algo.Algorithm { return &algo.RLOO{Clip: clip} }
	ppo := func(gamma, valueClip float64, whiten bool) func() algo.Algorithm {
		return func() algo.Algorithm {
			return &algo.PPO{Clip: clip, Gamma: gamma, Lambda: 0.9, ValueClip: valueClip, ValueCoef: valueCoef, Whiten: whiten}
		}
	}
	a2c := func(gamma, lambda float64, whiten bool) func() algo.Algorithm {
		return func() algo.Algorithm {
			return &algo.A2C{Gamma: gamma, Lambda: lambda, ValueCoef: valueCoef, Whiten: whiten}
		}
	}
	dqn := func() algo.Algorithm { return &algo.DQN{Temperature: qTemperature} }
	rewards := must.Get(reward.ParseLabels("calibration,accuracy=2,expr:'correct - 0.5*(1-correct)*confidence'=0.5", []string{"a", "b", "c", "d", "e"}, reward.Options{}))(t)
	bounds := algo.Replay{Min: 0.2, Max: 0.9}
	return append(objectiveCases(base), []oracleCase{
		{name: "sft of tokens", algorithm: func() algo.Algorithm { return &algo.SFT{} }, config: with(clipped), loss: imitation},
		{name: "sft of labels", labels: true, algorithm: func() algo.Algorithm { return &algo.SFT{} }, config: with(), loss: imitation},
		{name: "sft of tokens, aligned", penalty: 0.02, algorithm: func() algo.Algorithm { return &algo.SFT{FeatureAlignment: 0.02} }, config: with(clipped), loss: imitation},
		{name: "sft of labels, aligned", penalty: 0.02, labels: true, algorithm: func() algo.Algorithm { return &algo.SFT{FeatureAlignment: 0.02} }, config: with(), loss: imitation},

		{name: "reinforce, no baseline", algorithm: reinforce("none", "", ""), config: with(entropy), reduction: "sequence", advantages: none, loss: policyGradient},
		{name: "reinforce, group", algorithm: reinforce("group", "", "token"), config: with(), reduction: "token", advantages: centred, loss: policyGradient},
		{name: "reinforce, group scaled", algorithm: reinforce("group", "group", "dr_grpo"), config: with(), reduction: "dr_grpo", advantages: standardised, loss: policyGradient},
		{name: "reinforce, group scaled by all", algorithm: reinforce("group", "batch", ""), config: with(), reduction: "sequence", advantages: byAll, loss: policyGradient},
		{name: "reinforce, leave one out", algorithm: reinforce("leave_one_out", "", ""), config: with(kl("k3", false)), reduction: "sequence", advantages: others, loss: policyGradient},
		{name: "reinforce, batch", algorithm: reinforce("batch", "", ""), config: with(kl("k1", true)), reduction: "sequence", advantages: batch, loss: policyGradient},
		{name: "reinforce, batch scaled", algorithm: reinforce("batch", "batch", ""), config: with(), reduction: "sequence", advantages: batchScaled, loss: policyGradient},
		{name: "reinforce, moving", algorithm: reinforce("", "", ""), config: with(), reduction: "sequence", advantages: moving, loss: policyGradient},
		{name: "reinforce, greedy", algorithm: reinforce("greedy", "", ""), config: with(), reduction: "sequence", advantages: greedy, loss: policyGradient},
		{name: "reinforce, prefetched", prefetched: true, algorithm: reinforce("", "", ""), config: with(), reduction: "sequence", advantages: moving, loss: policyGradient},
		{name: "reinforce of labels", labels: true, algorithm: reinforce("", "", ""), config: with(entropy), reduction: "sequence", advantages: moving, loss: policyGradient},

		{name: "rloo", clip: clip, algorithm: rloo, config: with(twice, entropy), advantages: others, loss: sequenceSurrogate},
		{name: "rloo, far from the old policy", asked: true, clip: clip, algorithm: rloo, config: with(twice, entropy), advantages: others, loss: sequenceSurrogate},
		{name: "rloo, prefetched", clip: clip, prefetched: true, algorithm: rloo, config: with(twice, kl("k2", false)), advantages: others, loss: sequenceSurrogate},
		{name: "rloo, divergence in the reward", clip: clip, algorithm: rloo, config: with(twice, kl("k3", true)), advantages: others, loss: sequenceSurrogate},

		{name: "grpo", clip: clip, algorithm: grpo("", ""), config: with(twice), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, entropy and k2", clip: clip, algorithm: grpo("", "sequence"), config: with(twice, entropy, kl("k2", false)), reduction: "sequence", advantages: standardised, loss: surrogate},
		{name: "grpo, adaptive k3", clip: clip, algorithm: grpo("", ""), config: with(twice, kl("k3", false), adaptive, clipped), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, k3 times the ratio", clip: clip, algorithm: grpo("", ""), config: with(twice, kl("k3", false), corrected, betas), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, k3 times the ratio, far from the old policy", asked: true, clip: clip, algorithm: grpo("", "sequence"), config: with(twice, kl("k3", false), corrected), reduction: "sequence", advantages: standardised, loss: surrogate},
		{name: "grpo by samples, masked ones", masked: 5, clip: clip, algorithm: grpo("", "sequence"), config: with(twice, kl("k2", false)), reduction: "sequence", advantages: standardised, loss: surrogate},
		{name: "dr grpo, masked samples", masked: 5, clip: clip, algorithm: grpo("none", "dr_grpo"), config: with(entropy), reduction: "dr_grpo", advantages: centred, loss: surrogate},
		{name: "grpo by tokens, masked samples", masked: 5, clip: clip, algorithm: grpo("", ""), config: with(twice), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "rloo, masked samples", masked: 3, clip: clip, algorithm: rloo, config: with(), advantages: others, loss: sequenceSurrogate},
		{name: "dr grpo", clip: clip, algorithm: grpo("none", "dr_grpo"), config: with(twice, entropy), reduction: "dr_grpo", advantages: centred, loss: surrogate},
		{name: "grpo, k1 in the reward", clip: clip, algorithm: grpo("", ""), config: with(twice, kl("k1", true), adaptive), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, k2 in the reward, by all", clip: clip, algorithm: grpo("batch", ""), config: with(twice, kl("k2", true)), reduction: "token", advantages: byAll, loss: surrogate},
		{name: "grpo, prefetched", clip: clip, prefetched: true, algorithm: grpo("", ""), config: with(twice), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, far from the old policy", asked: true, clip: clip, algorithm: grpo("", ""), config: with(twice), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, stopped", clip: clip, algorithm: grpo("", ""), config: with(twice, func(c *Config) { c.TargetKL = 0.0015 }), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, stopped in the second pass", clip: clip, algorithm: grpo("", ""), config: with(twice, func(c *Config) { c.TargetKL = 0.004 }), reduction: "token", advantages: standardised, loss: surrogate},

		{name: "ppo, one sample at a time", clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(func(c *Config) { c.MinibatchSize = 1 }), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},
		{name: "grpo, entropy below its target from 0", clip: clip, algorithm: grpo("", ""), config: with(controlled(10)), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, uncertain tokens", clip: clip, algorithm: grpo("", ""), config: with(twice, entropy, uncertain, kl("k2", false)), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo by samples, uncertain tokens", clip: clip, algorithm: grpo("", "sequence"), config: with(twice, uncertain, controlled(1.55)), reduction: "sequence", advantages: standardised, loss: surrogate},
		{name: "grpo, entropy below its target", clip: clip, algorithm: grpo("", ""), config: with(twice, entropy, controlled(10)), reduction: "token", advantages: standardised, loss: surrogate},
		{name: "grpo, entropy above its target", clip: clip, algorithm: grpo("", ""), config: with(twice, entropy, controlled(0.1)), reduction: "token", advantages: standardised, loss: surrogate},

		{name: "ppo", clip: clip, algorithm: ppo(1, 0.1, true), config: with(twice, entropy, clipped), advantages: estimated(1, 0.9, true), loss: actorCritic(0.1)},
		{name: "ppo, discounted, no clip of values", clip: clip, algorithm: ppo(0.8, 0, false), config: with(twice, kl("k3", false)), advantages: estimated(0.8, 0.9, false), loss: actorCritic(0)},
		{name: "ppo, divergence in the reward", clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(twice, kl("k1", true), adaptive), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},
		{name: "ppo, episodes of two samples", joined: true, clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(twice), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},
		{name: "ppo, far from the old policy", asked: true, clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(twice), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},
		{name: "ppo of labels", labels: true, clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(twice, entropy), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},

		{name: "a2c", algorithm: a2c(1, 1, false), config: with(entropy), advantages: estimated(1, 1, false), loss: actorCriticOnce},
		{name: "a2c, discounted and whitened", joined: true, algorithm: a2c(0.8, 0.9, true), config: with(clipped, kl("k1", true)), advantages: estimated(0.8, 0.9, true), loss: actorCriticOnce},
		{name: "a2c of labels", labels: true, algorithm: a2c(1, 1, false), config: with(entropy, kl("k3", false)), advantages: estimated(1, 1, false), loss: actorCriticOnce},

		{name: "dqn", labels: true, samples: replayedStep, algorithm: dqn, config: with(drawn, fast), advantages: rewarded, loss: regression},

		{name: "expected", labels: true, clip: clip, algorithm: func() algo.Algorithm { return &algo.Expected{Rewards: rewards, Clip: clip} }, config: with(twice, entropy, kl("k3", false)), loss: expectation},
		{name: "replay", algorithm: func() algo.Algorithm { return &bounds }, config: with(drawn, entropy), reduction: "sequence", advantages: returned, loss: policyGradient},
		{name: "replay_kl", algorithm: func() algo.Algorithm { return &algo.ReplayKL{Replay: bounds, Coef: 0.3} }, config: with(drawn), reduction: "sequence", advantages: returned, loss: stable},
		{name: "replay_kl without a reference", algorithm: func() algo.Algorithm { return &algo.ReplayKL{Replay: bounds, Coef: 0} }, config: with(drawn), reduction: "sequence", advantages: returned, loss: policyGradient},
		{name: "replay_nll", algorithm: func() algo.Algorithm { return &algo.ReplayNLL{Replay: bounds} }, config: with(drawn), reduction: "sequence", advantages: returned, loss: policyGradient, referenceNLL: true},
	}...)
}

// TestStepsByHand takes three steps of every algorithm, each with up to four updates, and compares them with the
// oracle: the reported metrics, the weights, and AdamW's moments, which are means of the gradients.
func TestStepsByHand(t *testing.T) {
	for _, c := range oracleCases(t) {
		t.Run(c.name, func(t *testing.T) { c.compare(t) })
	}
}

func (c oracleCase) compare(t *testing.T) {
	torchtest.NoLeaks(t)
	p, other := newTable(t, 1), newTable(t, 2)
	p.bodyBias = !c.labels
	samples := tokenStep
	if c.labels {
		samples = labelStep
	}
	if c.samples != nil {
		samples = c.samples
	}
	source := func(at int) *rl.Step {
		step := samples(at)
		step.Prefetched, step.Masked = c.prefetched, c.masked
		if c.joined {
			for i, x := range step.Samples {
				x.Episode = i / 2
			}
		}
		if c.asked {
			rng := rand.New(rand.NewPCG(uint64(at), 6))
			for _, x := range step.Samples {
				x.Old, x.Value = x.BehaviorLogProbs, normals(rng, x.Len(), 0.5)
			}
		}
		return step
	}
	config := c.config
	a := c.algorithm()
	if config.KLCoef > 0 || a.Needs().Reference {
		config.Reference = other
	}
	var said recorded
	trainer := must.Open(New(p, fixed(source), a, config, said.hooks()))(t)
	o := &oracle{c: c, x: weightsOf64(t, p), m: make([]float64, all), v: make([]float64, all), coef: config.KLCoef, moving: 0.3, bonus: config.EntropyCoef, certain: math.NaN()}
	reference, ended := weightsOf64(t, other), 0
	for at, factor := range []float64{1, 3. / 4, 1. / 2} {
		want := o.step(at, factor, source(at), reference)
		got := must.Get(trainer.Step(t.Context()))(t)
		for name, value := range want {
			_, has := got[name]
			expect.True(t, has && math.Abs(got.Get(name)-value) <= 2e-4*(0.05+math.Abs(value)), "step %d: %s is %v, by hand %v", at+1, name, got.Get(name), value)
		}
		if o.stopped {
			ended++
			expect.True(t, slices.Contains(said.lines, fmt.Sprintf("step %d: updates ended after %v: the KL exceeds 1.5 × target_kl %g", at+1, want["updates"], config.TargetKL)), "%q", said.lines)
		}
	}
	expect.Same(t, config.TargetKL > 0, ended > 0, "the KL ended steps early")
	var m, v []float32
	for i, state := range must.Get(trainer.updater.optimizer.States())(t) { // the two moments of each weight
		values := must.Get(state.Read())(t)
		if i%2 == 0 {
			m = append(m, values...)
		} else {
			v = append(v, values...)
		}
	}
	for name, pair := range map[string][2][]float32{
		"first moments":  {m, narrow(o.m)[:len(m)]},
		"second moments": {v, narrow(o.v)[:len(v)]},
		"weights":        {narrow(weightsOf64(t, p)), narrow(o.x)},
	} {
		e := torchtest.RelativeError(pair[0], pair[1])
		expect.True(t, e < 3e-4, "%s are off by %.2g of themselves", name, e)
	}
	expect.Same(t, o.count, trainer.updater.optimizer.Steps(), "updates, by hand")
}

// weightsOf64 returns a table's weights, 0 for a missing value head.
func weightsOf64(t *testing.T, p *tablePolicy) []float64 {
	t.Helper()
	x := make([]float64, 0, all)
	for _, part := range weightsOf(t, p) {
		for _, v := range part {
			x = append(x, float64(v))
		}
	}
	return append(x, make([]float64, all-len(x))...)
}

func narrow(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}
