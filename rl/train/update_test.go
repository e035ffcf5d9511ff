package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// collected is a trainer with its source's first step.
func collected(t *testing.T, p *policy.CausalLM, r tokenRun) (*Trainer, *rl.Step) {
	t.Helper()
	source, sampler := r.source(t, p)
	defer sampler.Close()
	step := must.Get(source.Next(t.Context(), rl.At{}))(t)
	r.Samples = r.SamplesPerPrompt
	tr := must.Open(New(p, source, r.algorithm(), r.Config, run.Hooks{}))(t)
	tr.scorer.reference = must.Get(newReference(p, tr.config.Reference, tr.config.ReferenceEvery > 0, tr.refers()))(t)
	return tr, step
}

// prepared scores a step's samples like a training step.
func prepared(t *testing.T, tr *Trainer, step *rl.Step) {
	t.Helper()
	for _, x := range step.Samples {
		x.Old, x.Value = nil, nil
	}
	tr.scored = tr.scoresFirst()
	must.Do(t, tr.scorer.score(&rl.Step{Samples: step.Samples}))
	must.Do(t, tr.algorithm.Prepare(step))
}

// gradientsOf returns a minibatch's gradients and clears them.
func gradientsOf(t *testing.T, p run.Weights) []float32 {
	t.Helper()
	var all []float32
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		for _, v := range p.Params() {
			if g, ok := s.Grad(v); ok {
				all = append(all, s.Read(g)...)
			}
		}
	})
	must.Do(t, torch.ZeroGrad(p.Params()))
	return all
}

// counting counts a policy's forward passes.
type counting struct {
	policy.Policy
	passes int
}

func (c *counting) Forward(s *torch.Scope, b *rl.Batch, pass policy.Pass) policy.Output {
	c.passes++
	return c.Policy.Forward(s, b, pass)
}

// TestFirstUpdateTakesTheScoringPass: the first part runs once, not twice, and gives the gradient that a second run
// would give.
func TestFirstUpdateTakesTheScoringPass(t *testing.T) {
	for _, tokens := range []int{0, 40} {
		r := newTokenRun(newPPO)
		r.Minibatches, r.Epochs, r.MicroTokens = 2, 2, tokens
		tr, step := collected(t, tinyToken(t, 0), r)
		step.Figures = rl.Meter{}
		c := &counting{Policy: tr.policy}
		tr.policy = c
		prepared(t, tr, step)
		scoring := c.passes
		batch := tr.updater.minibatches(step.Samples, 0)[0]
		parts := len(tr.updater.parts(batch))
		must.Get(tr.updater.gradient(batch))(t)
		first := gradientsOf(t, tr.policy)
		got := c.passes - scoring
		expect.True(t, got == parts-1 && tr.updater.kept == nil, "the first update of %d parts ran %d of them, want all but one", parts, got)
		must.Get(tr.updater.gradient(batch))(t)
		expect.Equal(t, first, gradientsOf(t, tr.policy), "the gradient differs from that of a separate pass")
	}
}

// TestFirstRatioIsExactlyOne: in a step's first update, log π equals log π_old to the last bit.
func TestFirstRatioIsExactlyOne(t *testing.T) {
	for name, algorithm := range map[string]func() algo.Algorithm{"rloo": newRLOO, "grpo": newGRPO, "ppo": newPPO} {
		for _, minibatches := range []int{1, 3} {
			r := newTokenRun(algorithm)
			r.Minibatches, r.Epochs = minibatches, minibatches
			tr, step := collected(t, tinyToken(t, 0), r)
			step.Figures = rl.Meter{}
			prepared(t, tr, step)
			for _, batch := range tr.updater.minibatches(step.Samples, 0) {
				u := must.Get(tr.updater.gradient(batch))(t)
				expect.True(t, u.kl == 0 && u.low == 0 && u.high == 0, "%s, %d minibatches: an update starts at %+v", name, minibatches, u)
			}
			gradientsOf(t, tr.policy)
		}
	}
	t.Run("labels", func(t *testing.T) {
		r := newLabelRun("accuracy")
		r.Steps, r.Epochs, r.BufferSize = 1, 1, 32
		var said recorded
		must.Get(r.on(t.Context(), t, tinyLabel(t), said.hooks()))(t)
		row := said.steps()[0]
		for _, name := range []string{"approx_kl", "clip_ratio/region_mean", "sampling/sampling_logp_difference/max"} {
			expect.Same(t, 0.0, row[name], "the first update has %s %v, want exactly 0", name, row[name])
		}
	})
}

// everything is an algorithm that needs a backward pass for every sample.
type everything struct{ algo.Algorithm }

func (a everything) Needs() algo.Needs {
	needs := a.Algorithm.Needs()
	needs.ByAdvantage = false
	return needs
}

// TestSamplesWithoutAdvantageNeedNoBackwardPass compares a step that skips their backward pass with one that does not:
// gradient and metrics agree.
func TestSamplesWithoutAdvantageNeedNoBackwardPass(t *testing.T) {
	for name, algorithm := range map[string]func() algo.Algorithm{
		"reinforce": func() algo.Algorithm { return &algo.Reinforce{Baseline: "group"} }, "rloo": newRLOO, "grpo": newGRPO,
	} {
		p := tinyToken(t, 4)
		tr, step := collected(t, p, newTokenRun(algorithm))
		step.Figures = rl.Meter{}
		for _, x := range step.Groups[0] {
			clear(x.Rewards)
		}
		gradient := func(needs algo.Needs) ([]float32, rl.Meter, int) {
			tr.needs = needs
			prepared(t, tr, step)
			_, idle := tr.updater.idle(step.Samples)
			u := must.Get(tr.updater.gradient(step.Samples))(t)
			m := rl.Meter{}
			u.fill(m, 0, needs, tr.accuracy)
			return gradientsOf(t, p), m, len(idle)
		}
		want, wantFigures, none := gradient(everything{tr.algorithm}.Needs())
		got, figures, idle := gradient(tr.algorithm.Needs())
		expect.Require(t, none == 0 && idle >= len(step.Groups[0]), "%s: %d and %d samples are skipped", name, none, idle)
		e := torchtest.RelativeError(got, want)
		expect.True(t, e < 1e-5, "%s: the gradient differs by %v", name, e)
		expect.Equal(t, wantFigures, figures, cmpopts.EquateApprox(1e-5, 1e-6), fmt.Sprintf("%s: figures", name))
	}
}

// TestNothingToLearnChangesNothing has an update with advantages, which leaves momentum, and then one without any.
func TestNothingToLearnChangesNothing(t *testing.T) {
	for _, test := range []struct {
		name      string
		algorithm func() algo.Algorithm
		epochs    int
		change    func(c *Config)
		same      bool
	}{
		{"reinforce", newReinforce, 1, func(*Config) {}, true},
		{"grpo", newGRPO, 2, func(*Config) {}, true},
		{"grpo with entropy", newGRPO, 1, func(c *Config) { c.EntropyCoef = 0.1 }, true},
		{"grpo with a reference", newGRPO, 1, func(c *Config) { c.KLCoef, c.KLType = 0.1, "k3" }, false},
		{"ppo", newPPO, 1, func(*Config) {}, false},
	} {
		p := tinyToken(t, 4)
		r := newTokenRun(test.algorithm)
		r.Epochs = test.epochs
		test.change(&r.Config)
		tr, step := collected(t, p, r)
		update := func(advantage float32) int {
			step.Figures = rl.Meter{}
			prepared(t, tr, step)
			for i, x := range step.Samples {
				x.Fill(float64(advantage * float32(1-2*(i%2))))
			}
			return must.Get(tr.updater.learn(step))(t)
		}
		before := weightsOf(t, p)
		if n := update(1); n != test.epochs || slices.EqualFunc(before, weightsOf(t, p), slices.Equal) {
			t.Errorf("%s: %d updates with advantages", test.name, n)
		}
		before = weightsOf(t, p)
		n := update(0)
		same := slices.EqualFunc(before, weightsOf(t, p), slices.Equal)
		expect.True(t, same == test.same && (n == 0) == test.same, "%s: %d updates without advantages, weights the same: %t", test.name, n, same)
	}
}

// infinite is an algorithm whose loss is infinite and whose gradient is not.
type infinite struct{ *algo.Reinforce }

func (a *infinite) Loss(s *torch.Scope, b *algo.Batch) torch.Tensor {
	b.Add("loss", math.Inf(1))
	return a.Reinforce.Loss(s, b)
}

// TestNonFiniteUpdateStops: of an infinite gradient or loss the step ends, the weights stay, and the samples are kept for a look.
func TestNonFiniteUpdateStops(t *testing.T) {
	var dumped map[string]any
	h := run.Hooks{Dump: func(name string, v any) (string, error) { dumped = v.(map[string]any); return "logs/" + name, nil }}
	for _, test := range []struct {
		a      algo.Algorithm
		reward float64
		h      run.Hooks
		want   []string
	}{
		{&infinite{&algo.Reinforce{Baseline: "none"}}, 1, run.Hooks{}, []string{"step 1 … the loss is +Inf"}},
		{&algo.Reinforce{Baseline: "none"}, 1e39, run.Hooks{}, []string{"step 1", "lower the learning rate"}}, // finite until advantages are float32
		{&algo.Reinforce{Baseline: "none"}, 1e39, h, []string{"step 1", "lower the learning rate"}},
	} {
		p := newTable(t, 1)
		tr := must.Open(New(p, fixed(func(at int) *rl.Step {
			step := tokenStep(at)
			step.Groups[0][1].Rewards[0] = test.reward
			return step
		}), test.a, Config{Steps: 1, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}}, test.h))(t)
		before := weightsOf(t, p)
		expect.Failure(tr.Step(t.Context()))(t, test.want...)
		expect.Equal(t, before, weightsOf(t, p), "weights")
	}
	expect.True(t, dumped["step"] == 1 && len(dumped["tokens"].([][]int32)) == 11, "kept for a look: %v", dumped)
}

// TestLargeKLPullsBack has actions far from the reference: the loss stays finite, and the gradient points back.
func TestLargeKLPullsBack(t *testing.T) {
	for _, d := range []float64{-1000, -30, -20.5, -19.5, -1, 0, 3, 40} {
		v := must.Open(torch.Parameter([]float32{float32(d)}, 1))(t)
		var value, slope float64
		torchtest.Do(t, torch.Train, func(s *torch.Scope) {
			loss := lossOfKL(s, "k3", v.T(), s.Floats([]float32{0}, 1), s.Floats([]float32{2}, 1))
			value = s.Item(loss)
			s.Backward(loss)
			g, _ := s.Grad(v)
			slope = s.Item(g)
		})
		beyond := math.Max(d, -20)
		wantSlope := 2 * (1 - math.Exp(-beyond))
		want := 2*(math.Exp(-beyond)-1+beyond) + (d-beyond)*wantSlope
		expect.True(t, math.Abs(value-want) <= 1e-5*(1e-3+math.Abs(want)) && math.Abs(slope-wantSlope) <= 1e-5*(1e-3+math.Abs(wantSlope)),
			"k3 at %v: %v with slope %v, want %v with slope %v", d, value, slope, want, wantSlope)
	}
}

// TestReplayWithKLInReward: a minibatch of replayed turns may begin with one that has been scored and go on with others.
func TestReplayWithKLInReward(t *testing.T) {
	r := newReplayRun(&algo.Replay{Min: 0, Max: 10})
	r.Steps, r.MinibatchSize, r.KLCoef, r.KLType, r.KLInReward = 6, 4, 0.1, "k1", true
	var said recorded
	result := must.Get(r.on(t.Context(), t, tinyToken(t, 4), said.hooks()))(t)
	kl := said.figure("kl/k1")
	expect.True(t, result.Steps == 6 && kl[0] == 0 && kl[5] != 0, "%d steps, KL %v", result.Steps, kl)
}

// TestEarlierSegments: the segments of an episode have its advantage; those of their actions are estimated with a value head, and by a
// teacher.
func TestEarlierSegments(t *testing.T) {
	sample := func(episode int, reward float64) *rl.Sample {
		x := &rl.Sample{Episode: episode, Actions: []int32{1, 2}, Rewards: []float64{0, reward}, Value: []float32{0, 0}, Old: []float32{-2, -2}, Teacher: []float32{-1, -1}}
		x.Earlier = []*rl.Sample{{Episode: episode, Actions: []int32{3}, Rewards: []float64{0}, Value: []float32{0}, Old: []float32{-2}, Teacher: []float32{-2.5}}}
		return x
	}
	for name, want := range map[string][]float32{"grpo": {1, 1, -1, -1}, "reinforce++": {1, 1, -1, -1}, "ppo": {1, 1, 0, 0}, "distill": {-0.5, 1, -0.5, 1}} {
		d := must.Get(algo.Find(name))(t)
		a := d.New()
		switch a := a.(type) {
		case *algo.PPO:
			a.Whiten, a.Lambda, a.Gamma = false, 1, 1
		case *algo.Distill:
			a.Divergence = "sampled"
		}
		good, bad := sample(0, 1), sample(1, 0)
		step := &rl.Step{Groups: [][]*rl.Sample{{good, bad}}, Samples: rl.WithEarlier([]*rl.Sample{good, bad}), Figures: rl.Meter{}}
		trainer := &Trainer{training: &training{algorithm: a, needs: a.Needs()}}
		must.Do(t, trainer.prepare(step, []*rl.Sample{good, bad}))
		expect.True(t, len(step.Samples) == 4, "%s: %d samples", name, len(step.Samples))
		var got []float32
		for _, x := range []*rl.Sample{good.Earlier[0], good, bad.Earlier[0], bad} {
			expect.Require(t, len(x.Advantage) == x.Len(), "%s: %d advantages of %d actions", name, len(x.Advantage), x.Len())
			got = append(got, float32(math.Round(float64(x.Advantage[0])*10)/10))
		}
		if name == "grpo" {
			want = []float32{0.7, 0.7, -0.7, -0.7}
		}
		expect.Equal(t, want, got, name)
	}
}

// TestTrafficIsOfOneStep: a step does not count what steps before it exchanged.
func TestTrafficIsOfOneStep(t *testing.T) {
	groups, exchanges, gradients := disttest.Groups(t, 2), []any{}, []any{}
	disttest.Each(2, func(rank int) {
		h := (&recorded{}).hooks()
		h.LogEvery, h.Group = 1, groups[rank]
		h.Row = func(r report.Row) error {
			if n, ok := r["dist/exchanges"]; ok && rank == 0 {
				exchanges, gradients = append(exchanges, n), append(gradients, r["dist/gradient_bytes"])
			}
			return nil
		}
		_, _, err := everyRun()["packed epochs × sft"](t.Context(), t, h)
		expect.True(t, err == nil, "rank %d: %v", rank, err)
	})
	expect.True(t, len(exchanges) >= 7 && !slices.ContainsFunc(exchanges, func(n any) bool { return n.(float64) < 3 || n.(float64) > 5 }), "exchanges %v", exchanges)
	expect.True(t, gradients[0] != nil && gradients[0].(float64) > 4*100 && !slices.ContainsFunc(gradients, func(n any) bool { return n != gradients[0] }), "bytes of gradients %v", gradients)
}

// TestPartsAndRanksChangeNoStep takes the first step of every source with every algorithm in forward passes of one
// sequence, of 7 tokens, and of any size, and with two and three ranks: all metrics agree, including the gradient norm.
func TestPartsAndRanksChangeNoStep(t *testing.T) {
	const anySize = 1 << 20
	alone, groups := []*dist.Group{nil}, map[string][]*dist.Group{"2 ranks": disttest.Groups(t, 2), "3 ranks": disttest.Groups(t, 3)}
	for name, begin := range everyRun() {
		if strings.HasPrefix(name, "little memory") || strings.HasPrefix(name, "servers") || strings.HasPrefix(name, "programs") {
			continue // these runs of another row need other conditions
		}
		t.Run(name, func(t *testing.T) {
			first := func(limit int, ranks []*dist.Group) (row report.Row) {
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), limits{}, memory{micro: limit}))
				defer cancel()
				disttest.Each(len(ranks), func(rank int) {
					h := (&recorded{}).hooks()
					h.LogEvery, h.Group = 1, ranks[rank]
					h.Row = func(r report.Row) error {
						if _, ok := r["learning_rate"]; ok && row == nil && rank == 0 {
							row = maps.Clone(r)
							cancel()
						}
						return nil
					}
					h.Save = func(int, func(string) error) error { return nil }
					if _, _, err := begin(ctx, t, h); err != nil && !errors.Is(err, run.ErrStopped) {
						t.Errorf("rank %d: %v", rank, err)
						cancel()
					}
				})
				maps.DeleteFunc(row, func(name string, _ any) bool {
					return strings.HasPrefix(name, "dist/") || strings.HasPrefix(name, "time/")
				})
				return row
			}
			torchtest.NoLeaks(t)
			want := first(anySize, alone)
			norm, _ := want["grad_norm"].(float64)
			expect.Require(t, norm > 0, "the norm of the gradient is %v", want["grad_norm"])
			compare := func(what string, got report.Row) {
				expect.Equal(t, want, got, cmpopts.EquateApprox(1e-3, 1e-5), cmpopts.EquateNaNs(), what)
			}
			compare("passes of one sequence", first(1, alone))
			compare("passes of 7 tokens", first(7, alone))
			for what, ranks := range groups {
				compare(what, first(anySize, ranks))
			}
		})
	}
}
