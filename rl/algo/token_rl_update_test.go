package algo

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/torch"
	"rltrain/torch/torchtest"
)

// TestFirstRatioIsOne looks at the first update of a step: what is compared with π_old is π_old itself.
func TestFirstRatioIsOne(t *testing.T) {
	for _, algorithm := range []string{RLOO, GRPO, TokenPPO} {
		for _, minibatches := range []int{1, 3} {
			p := tiny(t, 0)
			c := rlConfig(algorithm)
			c.Minibatches, c.UpdateEpochs = minibatches, minibatches
			tr, r := collected(t, p, c)
			samples := tr.samples(r)
			if err := tr.score(samples); err != nil {
				t.Fatal(err)
			}
			for _, x := range samples {
				x.Advantage, x.Return = make([]float32, len(x.Penalty)), make([]float32, len(x.Penalty))
			}
			u, err := tr.gradient(tr.minibatches(samples, 0)[0])
			if err != nil {
				t.Fatal(err)
			}
			if u.KL != 0 || u.Low != 0 || u.High != 0 {
				t.Errorf("%s, %d minibatches: the first update starts at %+v", algorithm, minibatches, u)
			}
		}
	}
}

// gradientsOf are those that a minibatch leaves in the parameters.
func gradientsOf(t *testing.T, p *TokenPolicy) []float32 {
	t.Helper()
	var all []float32
	if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		for _, v := range p.params() {
			if g, ok := s.Grad(v); ok {
				all = append(all, s.Read(g)...)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestMicroBatchesChangeNothing(t *testing.T) {
	for _, test := range []struct{ algorithm, reduction string }{
		{Reinforce, ReduceSequence}, {Reinforce, ReduceDrGRPO}, {RLOO, ""}, {GRPO, ReduceToken}, {GRPO, ReduceSequence}, {TokenPPO, ""},
	} {
		p := tiny(t, 4)
		c := rlConfig(test.algorithm)
		c.Reduction, c.KLCoef, c.KLKind, c.EntropyCoef = test.reduction, 0.1, rl.K3, 0.01
		tr, r := collected(t, p, c)
		var want []float32
		for _, limit := range []int{0, 100, 1} {
			tr.config.MicroTokens = limit
			tr.moving.Restore(rl.MovingAverageState{})
			samples := tr.samples(r)
			if err := tr.score(samples); err != nil {
				t.Fatal(err)
			}
			tr.judge(r, samples)
			if _, err := tr.gradient(samples); err != nil {
				t.Fatal(err)
			}
			got := gradientsOf(t, p)
			if err := torch.ZeroGrad(p.params()); err != nil {
				t.Fatal(err)
			}
			if limit == 0 {
				want = got
			} else if e := torchtest.RelativeError(got, want); !(e < 1e-5) {
				t.Errorf("%s %s, %d tokens a pass: the gradient differs by %v", test.algorithm, test.reduction, limit, e)
			}
		}
	}
}

// TestSamplesWithoutAdvantageNeedNoBackwardPass compares a step that leaves them out of the backward pass with
// one that does not: the same gradient and the same figures.
func TestSamplesWithoutAdvantageNeedNoBackwardPass(t *testing.T) {
	for _, algorithm := range []string{Reinforce, RLOO, GRPO} {
		p := tiny(t, 4)
		c := rlConfig(algorithm)
		c.Baseline = map[string]rl.Baseline{Reinforce: rl.BaselineGroup}[algorithm]
		tr, r := collected(t, p, c)
		for _, x := range r.groups[0] {
			x.Turns[0].Reward = 1
		}
		step := func(spare bool) ([]float32, updateFigures, int) {
			tr.algorithm.ByAdvantage = spare
			samples := tr.samples(r)
			tr.judge(r, samples)
			_, idle := tr.idle(samples)
			f, err := tr.gradient(samples)
			if err != nil {
				t.Fatal(err)
			}
			gradient := gradientsOf(t, p)
			if err := torch.ZeroGrad(p.params()); err != nil {
				t.Fatal(err)
			}
			return gradient, f, len(idle)
		}
		want, wantFigures, none := step(false)
		got, figures, idle := step(true)
		if none != 0 || idle < len(r.groups[0]) {
			t.Fatalf("%s: %d and %d samples are left out", algorithm, none, idle)
		}
		if e := torchtest.RelativeError(got, want); !(e < 1e-5) {
			t.Errorf("%s: the gradient differs by %v", algorithm, e)
		}
		if diff := cmp.Diff(wantFigures, figures, cmpopts.EquateApprox(1e-5, 1e-6)); diff != "" {
			t.Errorf("%s: figures (-with +without):\n%s", algorithm, diff)
		}
	}
}

// TestNothingToLearnChangesNothing has an update with advantages, and so a momentum, and then one without any.
func TestNothingToLearnChangesNothing(t *testing.T) {
	for _, test := range []struct {
		algorithm string
		epochs    int
		change    func(c *TokenRLConfig)
		idle      bool
	}{
		{Reinforce, 1, func(c *TokenRLConfig) {}, true},
		{GRPO, 2, func(c *TokenRLConfig) {}, true},
		{GRPO, 1, func(c *TokenRLConfig) { c.EntropyCoef = 0.1 }, false},
		{GRPO, 1, func(c *TokenRLConfig) { c.KLCoef, c.KLKind = 0.1, rl.K3 }, false},
		{TokenPPO, 1, func(c *TokenRLConfig) {}, false},
	} {
		p := tiny(t, 4)
		c := rlConfig(test.algorithm)
		c.UpdateEpochs = test.epochs
		test.change(&c)
		tr, r := collected(t, p, c)
		weights := func() (all [][]float32) {
			if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
				all = gather(p.params(), func(v *torch.Var) []float32 { return s.Read(v.T()) })
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return all
		}
		update := func(advantage float32) tokenFigures {
			f := tokenFigures{samples: tr.samples(r)}
			if err := tr.score(f.samples); err != nil {
				t.Fatal(err)
			}
			for i, x := range f.samples {
				x.Advantage, x.Return = make([]float32, len(x.Penalty)), make([]float32, len(x.Penalty))
				for j := range x.Advantage {
					x.Advantage[j] = advantage * float32(1-2*(i%2))
				}
			}
			if err := tr.updates(&f); err != nil {
				t.Fatal(err)
			}
			return f
		}
		before := weights()
		if f := update(1); f.updates() != test.epochs || cmp.Equal(before, weights()) {
			t.Errorf("%s: %d updates with advantages, weights changed: %t", test.algorithm, f.updates(), !cmp.Equal(before, weights()))
		}
		before = weights()
		f := update(0)
		if same := cmp.Equal(before, weights()); same != test.idle || (f.updates() == 0) != test.idle {
			t.Errorf("%s, entropy %v, KL %v: %d updates without advantages, weights the same: %t", test.algorithm, c.EntropyCoef, c.KLCoef, f.updates(), same)
		}
	}
}

// TestAdvantagesOfAStep checks what reaches the tokens: equal rewards nothing at all, a failed reward nothing
// and no other sample's advantage.
func TestAdvantagesOfAStep(t *testing.T) {
	c := rlConfig(GRPO)
	c.SamplesPerPrompt, c.MaskOverlong = 3, true
	tr, _ := collected(t, tiny(t, 0), c)
	group := func(rewards ...float64) rl.Group {
		var g rl.Group
		for _, r := range rewards {
			x := trajectory([]int32{5, 6, 7}, 1)
			x.Turns[0].Reward, x.Stop = r, envs.StopEnd
			g = append(g, x)
		}
		return g
	}
	r := collection{groups: []rl.Group{group(0.1, 0.1, 0.1), group(1, math.NaN(), 0), group(1, 0, 0)}}
	r.groups[2][0].Stop = envs.StopLength
	samples := tr.samples(r)
	tr.judge(r, samples)
	var got [][]float32
	for _, x := range samples {
		got = append(got, x.Advantage)
	}
	pair := float32(0.5 / (math.Sqrt(0.5) + 1e-4))
	low := float32(-1. / 3 / (math.Sqrt(1./3) + 1e-4))
	want := [][]float32{{0, 0}, {0, 0}, {0, 0}, {pair, pair}, {-pair, -pair}, {low, low}, {low, low}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("advantages (-want +got):\n%s", diff)
	}
}

// TestPenaltiesAreInTheReward gives every completion the same reward and lets the penalties tell them apart.
func TestPenaltiesAreInTheReward(t *testing.T) {
	c := rlConfig(RLOO)
	c.OverlongBuffer, c.KLCoef, c.KLKind, c.KLInReward = 2, 0.5, rl.K1, true
	p := tiny(t, 0)
	c.Reference = tiny(t, 0)
	tr, _ := collected(t, p, c)
	short, long := trajectory([]int32{5, 6}, 1), trajectory([]int32{5, 6, 7, 8}, 1)
	r := collection{groups: []rl.Group{{short, long}}}
	samples := tr.samples(r)
	if err := tr.score(samples); err != nil {
		t.Fatal(err)
	}
	for i, x := range samples {
		for at := range x.Penalty {
			if x.Penalty[at] != 0 { // the reference is the policy itself
				t.Fatalf("penalty %v of its own", x.Penalty[at])
			}
			x.Penalty[at] = 0.1 * float64(i)
		}
	}
	tr.judge(r, samples)
	// Of 3 tokens at most, with a buffer of 2, one token costs nothing and three cost 1; and 3 × 0.1.
	if a, b := samples[0].Advantage[0], samples[1].Advantage[0]; math.Abs(float64(a)-1.3) > 1e-6 || a != -b {
		t.Errorf("advantages %v and %v, want ±1.3", a, b)
	}
}
