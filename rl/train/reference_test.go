package train

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// remembering keeps the samples that a source produced.
type remembering struct {
	Source
	steps []*rl.Step
}

func (r *remembering) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	step, err := r.Source.Next(ctx, at)
	r.steps = append(r.steps, step)
	return step, err
}

// asked returns a policy's scores of samples.
func asked(t *testing.T, p policy.Policy, samples []*rl.Sample, pass policy.Pass) (logProbs []float32) {
	t.Helper()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		logProbs = s.Read(p.Forward(s, rl.NewBatch(samples), pass).LogProbs)
	})
	return logProbs
}

// TestReference checks the KL of the first steps. The reference is the initial policy, adapter included, for every kind
// of policy.
func TestReference(t *testing.T) {
	for _, test := range []struct {
		name string
		p    func(t testing.TB, r int) *policy.CausalLM
		rank int
	}{{"all weights", tinyToken, 0}, {"a new adapter", tinyToken, 4}, {"an adapter that an earlier stage trained", trainedToken, 4}} {
		t.Run(test.name, func(t *testing.T) {
			p, twin := test.p(t, test.rank), test.p(t, test.rank)
			r := newTokenRun(newGRPO)
			r.Steps, r.LearningRate, r.KLCoef, r.KLType = 4, 0.02, 0.1, "k2"
			source, sampler := r.source(t, p)
			defer sampler.Close()
			said := &recorded{}
			seen := &remembering{Source: source}
			r.Samples = r.SamplesPerPrompt
			must.Get(Run(t.Context(), p, seen, r.algorithm(), r.Config, said.hooks()))(t)
			for i, kl := range said.figure("kl/k2") {
				expect.True(t, (i != 0 || kl <= 1e-9) && (i <= 0 || kl > 1e-6), "step %d: KL %v to the reference", i+1, kl)
			}
			for at, step := range seen.steps {
				var got []float32
				for _, x := range step.Samples {
					got = append(got, x.Reference...)
				}
				torchtest.Near(t, got, asked(t, twin, step.Samples, policy.Pass{Temperature: 1}), 1e-5, fmt.Sprintf("step %d: the reference from the policy as it was found", at+1))
			}
			expect.True(t, !slices.EqualFunc(weightsOf(t, p), weightsOf(t, twin), slices.Equal), "training has changed nothing")
		})
	}
}

// TestReferenceOfALabelPolicy has heads, which are not part of an adapter.
func TestReferenceOfALabelPolicy(t *testing.T) {
	r := newLabelRun("accuracy")
	r.Steps, r.KLCoef, r.KLType, r.BufferSize = 2, 0.1, "k3", 32
	var said recorded
	must.Get(r.on(t.Context(), t, tinyLabel(t), said.hooks()))(t)
	kl := said.figure("kl/k3")
	expect.True(t, kl[0] <= 1e-9 && kl[1] >= 1e-6, "KL %v", kl)
}

// TestReferenceFollows copies the policy every few steps, never, or uses another model.
func TestReferenceFollows(t *testing.T) {
	near := func(p func(t testing.TB, r int) *policy.CausalLM, rank int, change func(c *Config)) []bool {
		r := newReplayRun(&algo.ReplayKL{Replay: algo.Replay{Min: 0, Max: 10}, Coef: 0.25})
		r.Steps, r.MinibatchSize = 5, 0 // one update per step: the metric is for the weights before it
		change(&r.Config)
		var said recorded
		must.Get(r.on(t.Context(), t, p(t, rank), said.hooks()))(t)
		var zero []bool
		for _, kl := range said.figure("kl/k1") {
			zero = append(zero, math.Abs(kl) < 1e-5)
		}
		return zero
	}
	every := func(c *Config) { c.ReferenceEvery = 2 }
	for _, test := range []struct {
		name string
		want []bool
		got  []bool
	}{
		{"every 2 steps, new adapter", []bool{true, false, true, false, true}, near(tinyToken, 4, every)},
		{"every 2 steps, trained adapter", []bool{true, false, true, false, true}, near(trainedToken, 4, every)},
		{"every 2 steps, all weights", []bool{true, false, true, false, true}, near(tinyToken, 0, every)},
		{"never", []bool{true, false, false, false, false}, near(tinyToken, 4, func(*Config) {})},
		{"another model", []bool{false, false, false, false, false}, near(tinyToken, 4, func(c *Config) { c.Reference = trainedToken(t, 4) })},
	} {
		expect.Equal(t, test.want, test.got, fmt.Sprintf("%s: steps with zero KL", test.name))
	}
}

// TestReferenceMovesTowardsThePolicy: w_ref ← 0.25 w + 0.75 w_ref after steps 2 and 4, of an adapter as of all weights.
func TestReferenceMovesTowardsThePolicy(t *testing.T) {
	for _, rank := range []int{0, 4} {
		after := func(steps int) (weights, reference [][]float32) {
			r := newTokenRun(newGRPO)
			r.Steps, r.KLCoef, r.KLType, r.ReferenceSync = steps, 0.1, "k3", ReferenceSync{Sync: true, Alpha: 0.25, Every: 2}
			p := tinyToken(t, rank)
			source, sampler := r.source(t, p)
			defer sampler.Close()
			r.Samples = r.SamplesPerPrompt
			tr := must.Get(New(p, source, r.algorithm(), r.Config, run.Hooks{}))(t)
			defer tr.Close()
			must.Do(t, tr.run(t.Context()))
			return weightsOf(t, p), tr.scorer.reference.weights
		}
		_, start := after(1)
		second, _ := after(2)
		last, got := after(5)
		fourth, want := after(4)
		expect.Require(t, len(got) == len(fourth) && !slices.EqualFunc(fourth, last, slices.Equal),
			"rank %d: %d of %d weights of the reference, or the last step changes nothing", rank, len(got), len(fourth))
		expect.Same(t, "", cmp.Diff(want, got), "rank %d: step 5 moves the reference (-before +after):\n", rank)
		for i := range got {
			for j := range got[i] {
				want := 0.25*fourth[i][j] + 0.75*(0.25*second[i][j]+0.75*start[i][j])
				expect.Require(t, math.Abs(float64(got[i][j]-want)) <= 1e-6, "rank %d: weight %d.%d of the reference is %v, want %v", rank, i, j, got[i][j], want)
			}
		}
	}
}

// TestAlarmsOfATeacher: equal rewards raise no alarm if a teacher supervises, and training improves as the loss falls.
// The truncated completions still raise theirs.
func TestAlarmsOfATeacher(t *testing.T) {
	r := newTokenRun(func() algo.Algorithm { return &algo.Distill{Teacher: "given"} })
	r.taught, r.rewards = true, "expr:'1'"
	judged := 0.0
	r.Evaluate = &evaluate.Plan{Every: 5, Run: func(context.Context, int) (evaluate.Scores, error) {
		judged--
		return evaluate.Scores{Score: judged}, nil
	}}
	var said recorded
	must.Get(r.on(t.Context(), t, tinyToken(t, 4), said.hooks()))(t)
	var alarms []string
	for _, line := range said.lines {
		if rest, ok := strings.CutPrefix(line, "warning: "); ok {
			name, _, _ := strings.Cut(rest, ":")
			alarms = append(alarms, name)
		}
	}
	expect.Equal(t, []string{"truncation", "missing_end", "overfitting"}, alarms, strings.Join(said.lines, "\n"))
}

func TestDistillNeedsATeacher(t *testing.T) {
	expect.True(t, (&algo.Distill{}).Check(1) != nil, "no teacher is accepted")
	p := tinyToken(t, 4)
	_, err := New(p, epochs.NewPreferences([][]*rl.Sample{policy.Samples(texts(1))}, 1, 0, 1), &algo.Distill{Teacher: "given"}, Config{Steps: 1, Optimisation: Optimisation{LearningRate: 1, Schedule: "linear"}}, (&recorded{}).hooks())
	expect.True(t, err != nil && err.Error() == "the algorithm needs a teacher", "without the teacher: %v", err)
}

// TestEntropyOfPolicies is −Σ p log p over all actions.
func TestEntropyOfPolicies(t *testing.T) {
	token := trainedToken(t, 4)
	for name, test := range map[string]struct {
		p           policy.Policy
		sample      rl.Sample
		choices     int
		temperature float64
	}{
		"labels": {tinyLabel(t), rl.Sample{Tokens: []int32{3, 9, 4}}, len(labelNames), 1},
		"tokens": {token, rl.Sample{Tokens: []int32{30, 40, 50, 60}, Rows: []int{2}}, token.VocabSize(), 0.7},
	} {
		var batch []*rl.Sample
		for choice := range test.choices {
			x := test.sample
			x.Actions = []int32{int32(choice)}
			batch = append(batch, &x)
		}
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			out := test.p.Forward(s, rl.NewBatch(batch), policy.Pass{Temperature: test.temperature})
			sum, total := 0.0, 0.0
			for _, l := range s.Read(out.LogProbs) {
				p := math.Exp(float64(l))
				sum, total = sum-p*float64(l), total+p
			}
			got := float64(s.Read(out.Entropy)[0])
			expect.True(t, math.Abs(got-sum) <= 1e-4 && math.Abs(total-1) <= 1e-5, "%s: entropy %v, want %v; probabilities add up to %v", name, got, sum, total)
			ranks := out.Rank(s)
			slices.Sort(ranks)
			expect.True(t, ranks[0] == 0 && ranks[len(ranks)-1] == int64(test.choices-1), "%s: ranks from %d to %d of %d", name, ranks[0], ranks[len(ranks)-1], test.choices)
		})
	}
}

// TestTeacherFollows: the teacher has the weights of the start, their moving average, or the current ones, with an adapter and without,
// and training does not move it otherwise.
func TestTeacherFollows(t *testing.T) {
	for _, rank := range []int{0, 4} {
		for kind, self := range map[string]algo.SelfTeacher{"base": {Kind: "base"}, "ema": {Kind: "ema", Rate: 0.25, Every: 2}, "live": {Kind: "live"}} {
			t.Run(fmt.Sprint(kind, rank), func(t *testing.T) {
				torchtest.NoLeaks(t)
				p := trainedToken(t, rank)
				r := newTokenRun(func() algo.Algorithm {
					a := newSDFT().(*algo.Distill)
					a.Self = self
					return a
				})
				r.task, r.SamplesPerPrompt, r.NumGenerators = worked{}, 2, 1
				source, sampler := r.source(t, p)
				defer sampler.Close()
				trainer := must.Open(New(p, source, r.algorithm(), r.Config, (&recorded{}).hooks()))(t)
				want := must.Get(run.TakeSnapshot(p))(t)
				for step := range 4 {
					must.Get(trainer.Step(t.Context()))(t)
					now := must.Get(run.TakeSnapshot(p))(t)
					expect.True(t, !slices.Equal(now[1], want[1]), "step %d changes nothing", step)
					for i := range want {
						for j, w := range want[i] {
							switch {
							case kind == "live":
								want[i][j] = now[i][j]
							case kind == "ema" && step%2 == 1:
								want[i][j] = 0.25*now[i][j] + 0.75*w
							}
						}
					}
					expect.Equal(t, want, must.Get(run.TakeSnapshot(trainer.config.Teacher))(t), fmt.Sprintf("weights after step %d", step))
				}
			})
		}
	}
}

func newServedDistill() algo.Algorithm {
	return &algo.Distill{Teacher: "base", Divergence: "sampled", Server: algo.TeacherServer{URL: "given", Concurrency: 3, Timeout: 60}}
}
func newSDFT() algo.Algorithm {
	return &algo.Distill{Teacher: algo.TeacherSelf, Divergence: "jsd", Mix: 0.3, Self: algo.SelfTeacher{Kind: "ema", Rate: 0.3, Every: 2},
		Context: algo.TeacherContext{Kind: algo.Demonstration, Prompt: "{solution} {prompt}"}}
}

// newSDPO compares sampled tokens, or with the teacher's current weights all.
func newSDPO(kind string) func() algo.Algorithm {
	divergence := map[string]string{"ema": "sampled", "live": "reverse"}[kind]
	return func() algo.Algorithm {
		return &algo.Distill{Teacher: algo.TeacherSelf, Divergence: divergence, Self: algo.SelfTeacher{Kind: kind, Rate: 0.3, Every: 1},
			Context: algo.TeacherContext{Kind: algo.Sibling, Prompt: "{prompt}{solution} {prompt}", Success: 1}}
	}
}
