package train

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
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
	must.Do(t, torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		logProbs = s.Read(p.Forward(s, rl.NewBatch(samples), pass).LogProbs)
		return nil
	}))
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

// TestAskingTheReferenceLeavesThePolicy checks that the swapped weights are restored.
func TestAskingTheReferenceLeavesThePolicy(t *testing.T) {
	p := trainedToken(t, 4)
	r := must.Get(newReference(p, nil, false, true))(t)
	first := p.Params()[1]
	values := must.Get(first.Read())(t)
	values[0]++
	must.Do(t, first.Write(values))
	before := weightsOf(t, p)
	inside := float32(0)
	must.Do(t, r.ask(p, func(policy.Policy, bool) error {
		inside = weightsOf(t, p)[1][0]
		return nil
	}))
	expect.True(t, math.Abs(float64(inside-(values[0]-1))) <= 1e-6,
		"the reference has the weight %v, want %v", inside, values[0]-1)
	expect.True(t, slices.EqualFunc(before, weightsOf(t, p), slices.Equal), "the policy's weights have changed")
}
