package train

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

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
		{"never, new adapter", []bool{true, false, false, false, false}, near(tinyToken, 4, func(*Config) {})},
		{"never, trained adapter", []bool{true, false, false, false, false}, near(trainedToken, 4, func(*Config) {})},
		{"never, all weights", []bool{true, false, false, false, false}, near(tinyToken, 0, func(*Config) {})},
		{"another model", []bool{false, false, false, false, false}, near(tinyToken, 4, func(c *Config) { c.Reference = trainedToken(t, 4) })},
	} {
		expect.Equal(t, test.want, test.got, fmt.Sprintf("%s: steps with zero KL", test.name))
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

// TestCopiesFollow: a reference or a teacher has the weights of the start, their moving average, or the current ones, with an adapter and
// without, and training does not move it otherwise.
func TestCopiesFollow(t *testing.T) {
	taught := func(kind string) func(r *tokenRun) {
		return func(r *tokenRun) {
			r.task, r.algorithm = worked{}, func() algo.Algorithm {
				a := newSDFT().(*algo.Distill)
				a.Self = algo.SelfTeacher{Kind: kind, Rate: 0.25, Every: 2}
				return a
			}
		}
	}
	for kind, change := range map[string]func(r *tokenRun){
		"base": taught("base"), "ema": taught("ema"), "live": taught("live"), "reference": func(r *tokenRun) {
			r.KLCoef, r.KLType, r.ReferenceSync = 0.1, "k3", ReferenceSync{Sync: true, Alpha: 0.25, Every: 2}
		},
	} {
		for _, rank := range []int{0, 4} {
			t.Run(fmt.Sprint(kind, rank), func(t *testing.T) {
				torchtest.NoLeaks(t)
				begin := trainedToken
				if kind == "reference" {
					begin = tinyToken // whose new adapter alone would need no copy
				}
				p, r := begin(t, rank), newTokenRun(newGRPO)
				r.SamplesPerPrompt, r.NumGenerators, r.Samples = 2, 1, 2
				change(&r)
				source, sampler := r.source(t, p)
				defer sampler.Close()
				trainer := must.Open(New(p, source, r.algorithm(), r.Config, (&recorded{}).hooks()))(t)
				want := weightsOf(t, p)
				for step := range 4 {
					must.Get(trainer.Step(t.Context()))(t)
					now, got := weightsOf(t, p), trainer.scorer.reference.weights
					expect.True(t, !slices.Equal(now[1], want[1]), "step %d changes nothing", step)
					for i := range want {
						for j, w := range want[i] {
							switch {
							case kind == "live":
								want[i][j] = now[i][j]
							case kind != "base" && step%2 == 1:
								want[i][j] = 0.25*now[i][j] + 0.75*w
							}
						}
					}
					if kind != "reference" {
						got = weightsOf(t, trainer.config.Teacher)
					}
					expect.Equal(t, want, got, fmt.Sprintf("weights after step %d", step))
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
