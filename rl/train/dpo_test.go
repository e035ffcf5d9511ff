package train

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

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

func newDPO(losses ...string) *algo.DPO {
	return &algo.DPO{Losses: losses, Beta: 0.4, CPOAlpha: 0.7, SimPOGamma: 0.3, DesirableWeight: 1.5, UndesirableWeight: 0.5}
}

// TestAccuracyOfPairs: a chosen action is right if it was the most likely one; rejected ones do not count.
func TestAccuracyOfPairs(t *testing.T) {
	var samples []*rl.Sample
	for i, n := range []int{1, 2, 1, 1} {
		samples = append(samples, &rl.Sample{Index: i % 2, Actions: make([]int32, n)})
	}
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		var u update
		out := policy.Output{Entropy: s.Floats(make([]float32, 5), 5), Rank: func(*torch.Scope) []int64 { return []int64{0, 0, 0, 1, 0} }}
		u.count(s, samples, out, algo.Needs{Together: true})
		expect.True(t, u.right == 1 && u.judged == 2, "%v of %v are right, want 1 of 2", u.right, u.judged)
	})
}

// TestPairsOfOwnAnswers pairs the best and worst of each group, and counts groups without a difference.
func TestPairsOfOwnAnswers(t *testing.T) {
	group := func(rewards ...float64) []*rl.Sample {
		var all []*rl.Sample
		for i, r := range rewards {
			all = append(all, &rl.Sample{Actions: []int32{1}, Rewards: []float64{r}, Index: i})
		}
		return all
	}
	a, b, c, d := group(0, 2, 2, 0), group(1, 1), group(3, math.NaN(), -1), group(5, 7)
	d[0].Overlong, d[1].Overlong = 0, -3
	step := &rl.Step{Groups: [][]*rl.Sample{a, b, c, d}, Figures: rl.Meter{}}
	for _, g := range step.Groups {
		for _, x := range g {
			if x.HasReward() {
				step.Samples = append(step.Samples, x)
			}
		}
	}
	(&algo.OnlineDPO{}).Needs().Choose(step)
	expect.True(t, slices.Equal(step.Samples, []*rl.Sample{a[1], a[0], c[0], c[2], d[0], d[1]}), "%d samples", len(step.Samples))
	ties := step.Figures.Get("ties")
	expect.True(t, ties == 0.25, "%v of the groups are ties", ties)
}

// preferred returns n pairs for the tiny model; chosen answers have small letters.
func preferred(t testing.TB, p *policy.CausalLM, n int) [][]*rl.Sample {
	t.Helper()
	rng := rand.New(rand.NewPCG(8, 1))
	var units [][]*rl.Sample
	for pair := range n {
		var unit []*rl.Sample
		for side, letters := range []string{"abcdefgh", "ABCDEFGH"} {
			text := ""
			for range 1 + rng.IntN(3) {
				text += string(letters[rng.IntN(len(letters))])
			}
			prompt := must.Get(p.Tokenizer.EncodeRaw("say something now: ", false))(t)
			answer := must.Get(p.Tokenizer.EncodeRaw(text, false))(t)
			x := &rl.Sample{Tokens: slices.Concat(prompt, answer), Actions: answer, Prompt: pair, Index: side, Truth: int32(1 - side)}
			for i := range answer {
				x.Rows = append(x.Rows, len(prompt)-1+i)
			}
			unit = append(unit, x)
		}
		units = append(units, unit)
	}
	return units
}

// singles splits pairs into single answers.
func singles(units [][]*rl.Sample) [][]*rl.Sample {
	var all [][]*rl.Sample
	for _, x := range slices.Concat(units...) {
		x.Prompt = len(all)
		all = append(all, []*rl.Sample{x})
	}
	return all
}

func preferenceRun(ctx context.Context, t *testing.T, p *policy.CausalLM, a *algo.DPO, steps int, precompute bool, h run.Hooks) (Result, error) {
	t.Helper()
	units, mismatch := preferred(t, p, 13), 0
	if a.Unpaired() {
		units, mismatch = singles(units), 30
	}
	source := epochs.NewPreferences(units, 4, mismatch, 5)
	c := Config{Steps: steps, Seed: 3, Memory: Memory{MicroTokens: 90}, Optimisation: Optimisation{LearningRate: 1e-2, Schedule: "cosine", WarmupSteps: 2, MaxGradNorm: 0.5}}
	if precompute {
		c.Precompute = slices.Concat(units...)
	}
	return launch(ctx, p, source, a, c, h)
}

func ofPairs(a func() *algo.DPO, p func(t testing.TB, r int) *policy.CausalLM, rank int, precompute bool) resumable {
	return func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
		p := p(t, rank)
		result, err := preferenceRun(ctx, t, p, a(), 7, precompute, h)
		return p, result, err
	}
}

// TestScoreOfPreferences computes the metrics of held-out pairs by hand.
func TestScoreOfPreferences(t *testing.T) {
	p := trainedToken(t, 4)
	units := preferred(t, p, 6)
	var sums []float64
	for _, x := range slices.Concat(units...) {
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			l := s.Read(p.Forward(s, rl.NewBatch([]*rl.Sample{x}), policy.Pass{Temperature: 1}).LogProbs)
			sums = append(sums, rl.Total(l))
			x.Reference = make([]float32, len(l))
			x.Reference[0] = float32(-2 - x.Index)
		})
	}
	a := newDPO("sigmoid")
	v := must.Get(evaluate.ScorePreferences(t.Context(), p, a, units))(t)
	right, margin, loss := 0.0, 0.0, 0.0
	for i := 0; i < len(sums); i += 2 {
		m := a.Beta * (sums[i] + 2 - sums[i+1] - 3)
		if m > 0 {
			right++
		}
		margin, loss = margin+m/6, loss-math.Log(sigma(m))/6
	}
	expect.True(t, math.Abs(v.Accuracy.Value-right/6) <= 1e-9 && math.Abs(v.Margin.Value-margin) <= 1e-4 && math.Abs(v.Loss-loss) <= 1e-4,
		"%s; want accuracy %v, margin %v, loss %v", v, right/6, margin, loss)
	// So many pairs that they go through the model in several parts have the same mean.
	many := must.Get(evaluate.ScorePreferences(t.Context(), p, a, slices.Repeat(units, 60)))(t)
	expect.True(t, math.Abs(many.Loss-loss) <= 1e-4, "60 times the pairs: loss %v, want %v", many.Loss, loss)
	// Without a reference, a reward is the mean log-probability of the answer's tokens.
	a, margin = newDPO("simpo"), 0
	v = must.Get(evaluate.ScorePreferences(t.Context(), p, a, units))(t)
	for i, unit := range units {
		margin += a.Beta * (sums[2*i]/float64(unit[0].Len()) - sums[2*i+1]/float64(unit[1].Len())) / 6
	}
	expect.True(t, math.Abs(v.Margin.Value-margin) <= 1e-4, "margin %v, want %v", v.Margin, margin)
}

// TestPrecomputedReference gives the same run, up to rounding, as computing the reference in each step.
func TestPrecomputedReference(t *testing.T) {
	var asked, precomputed recorded
	for _, one := range []struct {
		into *recorded
		pre  bool
	}{{&asked, false}, {&precomputed, true}} {
		must.Get(preferenceRun(t.Context(), t, trainedToken(t, 4), newDPO("sigmoid"), 7, one.pre, one.into.hooks()))(t)
	}
	expect.Equal(t, asked.figure("loss"), precomputed.figure("loss"), cmpopts.EquateApprox(1e-3, 1e-5))
	first := asked.figure("rewards/margins")[0]
	expect.True(t, math.Abs(first) <= 1e-6, "margin %v of the adapter that training began with, which is the reference", first)
	p := trainedToken(t, 4)
	c := Config{Steps: 1, Optimisation: Optimisation{Schedule: "constant"}, Precompute: []*rl.Sample{{Tokens: []int32{1 << 20, 2}, Rows: []int{0}, Actions: []int32{2}}}}
	expect.Failure(Run(t.Context(), p, epochs.NewPreferences(preferred(t, p, 3), 1, 0, 1), newDPO("sigmoid"), c, run.Hooks{}))(t, "")
}

// TestDivergenceOfSingles: the KL estimate from answers to other prompts is never below 0.
func TestDivergenceOfSingles(t *testing.T) {
	of := func(old, reference float32) *rl.Sample {
		return &rl.Sample{Old: []float32{old, -1}, Reference: []float32{reference, -1}}
	}
	for _, test := range []struct {
		samples []*rl.Sample
		want    float64
	}{{nil, 0}, {[]*rl.Sample{of(-1, -2), of(-3, -2.5)}, 0.25}, {[]*rl.Sample{of(-1, -1.5), of(-3, -2)}, 0}} {
		figures := rl.Meter{}
		must.Do(t, newDPO("kto").Prepare(&rl.Step{KLSamples: test.samples, Figures: figures}))
		got := figures.Get("kl")
		expect.True(t, math.Abs(got-test.want) <= 1e-6, "mean ratio of %d samples %v, want %v", len(test.samples), got, test.want)
	}
}

// TestScoreOfSingles computes the metrics from K, the mean ratio of answers to other prompts.
func TestScoreOfSingles(t *testing.T) {
	p := trainedToken(t, 4)
	a := newDPO("kto")
	samples := slices.Concat(preferred(t, p, 3)...)
	aside := epochs.Mismatches(samples, 96)
	sum := func(x *rl.Sample) (l float64) {
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			l = rl.Total(s.Read(p.Forward(s, rl.NewBatch([]*rl.Sample{x}), policy.Pass{Temperature: 1}).LogProbs))
		})
		return l
	}
	k := 0.0
	for i, x := range slices.Concat(samples, aside) {
		x.Reference = make([]float32, x.Len())
		x.Reference[0] = float32(sum(x)) - []float32{2, -1, 0.5}[i%3]
		if i >= len(samples) {
			k += float64([]float32{2, -1, 0.5}[i%3]) / float64(len(aside))
		}
	}
	units := make([][]*rl.Sample, len(samples))
	loss, right := 0.0, 0.0
	for i, x := range samples {
		x.Truth = int32(1 - i%2)
		units[i] = []*rl.Sample{x}
		above := a.Beta * ([]float64{2, -1, 0.5}[i%3] - k)
		if x.Truth == 0 {
			above = -above
		}
		loss += (1 - sigma(above)) / float64(len(samples))
		if above > 0 {
			right += 1 / float64(len(samples))
		}
	}
	must.Do(t, evaluate.PrepareKL(p, a, aside))
	v := must.Get(evaluate.ScorePreferences(t.Context(), p, a, units))(t)
	reward := v.Units[0].Rewards[0]
	expect.True(t, math.Abs(reward-a.Beta*(2-k)) <= 1e-4, "reward %v of the first answer, want %v", reward, a.Beta*(2-k))
	expect.True(t, k > 0 && math.Abs(v.Loss-loss) <= 1e-4 && math.Abs(v.Accuracy.Value-right) <= 1e-9, "%s; want loss %v, accuracy %v with K %v", v, loss, right, k)
}

func sigma(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
