package algo

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl"
)

func TestWeight(t *testing.T) {
	for reduction, want := range map[string][3]float64{
		ReduceToken: {1. / 16, 1. / 16, 1. / 16}, ReduceSequence: {1. / 15, 1. / 3, 1. / 30}, ReduceDrGRPO: {1. / 60, 1. / 60, 1. / 60}, ReduceSum: {1. / 3, 1. / 3, 1. / 3},
	} {
		for i, n := range []int{5, 1, 10} {
			expect.Same(t, want[i], ActionWeight(reduction, n, 3, 16, 20), "%s: a token of %d weighs", reduction, n)
		}
	}
}

// TestBaselineIsRewardMinusAdvantage: the reported baseline is the mean of reward − advantage over samples with a reward.
func TestBaselineIsRewardMinusAdvantage(t *testing.T) {
	sample := func(reward float64) *rl.Sample {
		return &rl.Sample{Actions: []int32{1, 2}, Rewards: []float64{0, reward}}
	}
	step := &rl.Step{Figures: rl.Meter{}, Groups: [][]*rl.Sample{{sample(1), sample(3)}, {sample(4), sample(math.NaN())}}}
	must.Do(t, compare(step, rl.Advantages{Baseline: rl.BaselineGroup, Scale: rl.ScaleNone}, nil))
	// Means of 2, 2 and 4; a reward with nothing to compare it with gets no advantage.
	got, want := step.Figures.Get("baseline/mean"), (2.0+2+4)/3
	expect.True(t, math.Abs(got-want) <= 1e-12, "baseline %v, want %v", got, want)
	a := step.Groups[0][1].Advantage
	expect.True(t, len(a) == 2 && a[0] == 1 && a[1] == 1, "advantages %v of a reward of 3 with a mean of 2", a)
}

// TestMaxRLRefusesNegativeRewards: divided by their mean they would turn around.
func TestMaxRLRefusesNegativeRewards(t *testing.T) {
	a := New[GRPO]()
	a.Scale = "mean"
	for reward, refused := range map[float64]bool{-0.5: true, 0: false} {
		sample := func(r float64) *rl.Sample { return &rl.Sample{Actions: []int32{1}, Rewards: []float64{r}} }
		step := &rl.Step{Figures: rl.Meter{}, Groups: [][]*rl.Sample{{sample(reward), sample(3)}}}
		err := a.Prepare(step)
		expect.True(t, (err != nil) == refused, "a reward of %g: %v", reward, err)
	}
}

// TestGPGCountsRewards: samples whose reward is missing do not count, and those below 0 are no zeros.
func TestGPGCountsRewards(t *testing.T) {
	sample := func(r float64) *rl.Sample { return &rl.Sample{Actions: []int32{1}, Rewards: []float64{r}} }
	step := &rl.Step{Figures: rl.Meter{}, Groups: [][]*rl.Sample{{sample(-1), sample(0), sample(4), sample(math.NaN())}}}
	must.Do(t, New[GPG]().Prepare(step))
	for i, want := range []float32{-2 * 3. / 2, -1 * 3. / 2, 3 * 3. / 2} {
		expect.Same(t, want, step.Groups[0][i].Advantage[0], "sample %d: advantage", i)
	}
}

// TestBoundsOfRatios: the clip that metrics count by is that of the loss.
func TestBoundsOfRatios(t *testing.T) {
	gmpo, cispo := New[GMPO](), New[CISPO]()
	gmpo.Low, gmpo.High, cispo.Floor, cispo.Cap = math.Log(2), math.Log(3), 0.25, 5
	for name, c := range map[string][3]float64{"gmpo": {gmpo.Needs().Clip.Low, 0.5}, "gmpo, high": {gmpo.Needs().Clip.High, 2}, "cispo": {cispo.Needs().Clip.Low, 0.75}, "cispo, high": {cispo.Needs().Clip.High, 4}} {
		expect.True(t, math.Abs(c[0]-c[1]) <= 1e-12, "%s: clipped at a distance of %v from 1, want %v", name, c[0], c[1])
	}
	for region, want := range map[string][2]float64{"tv": {0, 0.2}, "kl": {0, 0.05}, "auto": {0.3, 0.3}} {
		expect.Same(t, want[1], (&DPPO{Divergence: region, Delta: want[0]}).delta(), "distance of %s", region)
	}
	for delta, ok := range map[float64]bool{0: true, 1.1: false, 1.2: false, 1.3: true} {
		a := New[GRPO]()
		a.High, a.Delta = 0.2, delta
		err := a.Check(2)
		expect.True(t, (err == nil) == ok, "delta %v above a clip of 1.2: %v", delta, err)
	}
}

// TestMovingBaseline follows the mean reward of each step, and keeps its value if no sample has a reward.
func TestMovingBaseline(t *testing.T) {
	a := New[Reinforce]()
	a.Start, a.Decay = 0.5, 0.9
	for i, step := range []struct {
		rewards [][]float64
		want    float64 // .9·.5+.1·1 = .55; .9·.55 = .495; no reward, no change
	}{{[][]float64{{1}, {1}}, 0.55}, {[][]float64{{0, math.NaN()}}, 0.495}, {[][]float64{{math.NaN()}}, 0.495}} {
		a.follow(step.rewards)
		expect.True(t, math.Abs(a.moving()-step.want) <= 1e-12, "step %d: baseline %v, want %v", i+1, a.moving(), step.want)
	}
}

// TestDefaultsPassTheirChecks: algorithms from New and from a definition pass the trainer's checks.
func TestDefaultsPassTheirChecks(t *testing.T) {
	for _, d := range Definitions() {
		a := d.New()
		expect.NoError(t, options.Check(a), "%s", d.Name)
	}
	if a := New[Reinforce](); a.Start != 0.5 || a.Decay != 0.9 {
		t.Errorf("%+v", a)
	}
	expect.Error(t, options.Check(&GRPO{}), "clip_low")
}

// TestProcessSupervision compares with equation 20 of DeepSeekMath by hand: with the rewards R of all steps of the prompt,
// A of an action is Σ (R_k − mean R)/std R over the steps k that end at it or later.
func TestProcessSupervision(t *testing.T) {
	group := []*rl.Sample{
		{Actions: []int32{1, 1, 1, 1}, Rewards: []float64{0, 1, 0, 3}, Ends: []int{1, 3}},
		{Actions: []int32{1, 1}, Rewards: []float64{0, 5}, Ends: []int{1}, Overlong: -1},
		{Actions: []int32{1, 1}, Rewards: []float64{math.NaN(), 2}, Ends: []int{0, 1}}, // it failed
		{Rewards: []float64{2}},
	}
	a := New[GRPO]()
	a.Process = true
	must.Do(t, a.Prepare(&rl.Step{Figures: rl.Meter{}, Groups: [][]*rl.Sample{group}}))
	// Rewards 1, 3, 5−1, 2: mean 2.5, squares 2.25 + 0.25 + 2.25 + 0.25 = 5.
	by := math.Sqrt(5./3) + 1e-4
	for i, want := range [][]float64{{-1 / by, -1 / by, 0.5 / by, 0.5 / by}, {1.5 / by, 1.5 / by}, {0, 0}, {}} {
		expect.Same(t, len(want), len(group[i].Advantage), "advantages of sample %d", i)
		for at, want := range want {
			got := float64(group[i].Advantage[at])
			expect.True(t, math.Abs(got-want) < 1e-7, "sample %d, action %d: %v, want %v", i, at, got, want)
		}
	}
	a.Scale, group[0].Rewards[1] = "mean", -1
	expect.Error(t, a.Prepare(&rl.Step{Figures: rl.Meter{}, Groups: [][]*rl.Sample{group}}), "must not be negative")
}
