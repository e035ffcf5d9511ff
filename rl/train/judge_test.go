package train

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

func TestEpochsShowEverythingOnce(t *testing.T) {
	source := must.Get(epochs.New(policy.Samples(texts(10)), 3, 0, 1))(t)
	expect.Require(t, source.PerEpoch() == 4, "%d steps an epoch", source.PerEpoch())
	var orders [][]int
	for epoch := range 3 {
		var seen []int
		for i := range 4 {
			step := must.Get(source.Next(t.Context(), rl.At{Step: 4*epoch + i}))(t)
			for _, x := range step.Samples {
				seen = append(seen, x.Prompt)
			}
		}
		orders = append(orders, seen)
		expect.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, slices.Sorted(slices.Values(seen)), fmt.Sprintf("epoch %d", epoch))
	}
	expect.True(t, !cmp.Equal(orders[0], orders[1]) && !cmp.Equal(orders[1], orders[2]), "two epochs have one order: %v", orders)
}

// TestEachStepHasNewPrompts even if a step skips some.
func TestEachStepHasNewPrompts(t *testing.T) {
	for name, change := range map[string]func(r *tokenRun){
		"plain": func(*tokenRun) {}, "dynamic": func(r *tokenRun) { r.DynamicSampling = true }, "async": func(r *tokenRun) { r.Async = true },
	} {
		r := newTokenRun(newGRPO)
		r.SamplesPerPrompt, r.Steps = 2, 3
		change(&r)
		source, sampler := r.source(t, tinyToken(t, 0))
		defer sampler.Close()
		last := -1
		for at := range 3 {
			step := must.Get(source.Next(t.Context(), rl.At{Step: at}))(t)
			for _, x := range step.Samples {
				expect.True(t, x.Index != 0 || x.Prompt > last, "%s: step %d repeats prompt %d", name, at+1, x.Prompt)
				last = max(last, x.Prompt)
			}
		}
	}
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
		must.Do(t, torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			out := test.p.Forward(s, rl.NewBatch(batch), policy.Pass{Temperature: test.temperature})
			sum, total := 0.0, 0.0
			for _, l := range s.Read(out.LogProbs) {
				p := math.Exp(float64(l))
				sum, total = sum-p*float64(l), total+p
			}
			if got := float64(s.Read(out.Entropy)[0]); math.Abs(got-sum) > 1e-4 || math.Abs(total-1) > 1e-5 {
				t.Errorf("%s: entropy %v, want %v; probabilities add up to %v", name, got, sum, total)
			}
			ranks := out.Rank(s)
			if slices.Sort(ranks); ranks[0] != 0 || ranks[len(ranks)-1] != int64(test.choices-1) {
				t.Errorf("%s: ranks from %d to %d of %d", name, ranks[0], ranks[len(ranks)-1], test.choices)
			}
			return nil
		}))
	}
}
