package algo

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
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
	compare(step, rl.Advantages{Baseline: rl.BaselineGroup, Scale: rl.ScaleNone}, nil)
	// Means of 2, 2 and 4; a reward with nothing to compare it with gets no advantage.
	got, want := step.Figures.Get("baseline/mean"), (2.0+2+4)/3
	expect.True(t, math.Abs(got-want) <= 1e-12, "baseline %v, want %v", got, want)
	a := step.Groups[0][1].Advantage
	expect.True(t, len(a) == 2 && a[0] == 1 && a[1] == 1, "advantages %v of a reward of 3 with a mean of 2", a)
}

// TestMaxRLRefusesNegativeRewards: divided by their mean they would turn around.
func TestMaxRLRefusesNegativeRewards(t *testing.T) {
	grpo, reinforce := New[GRPO](), New[Reinforce]()
	grpo.Scale, reinforce.Scale, reinforce.Baseline = "mean", "mean", "group"
	for reward, refused := range map[float64]bool{-0.5: true, 0: false} {
		sample := func(r float64) *rl.Sample { return &rl.Sample{Actions: []int32{1}, Rewards: []float64{r}} }
		for _, a := range []Algorithm{grpo, reinforce} {
			err := a.Prepare(&rl.Step{Figures: rl.Meter{}, Groups: [][]*rl.Sample{{sample(reward), sample(3)}}})
			expect.True(t, (err != nil) == refused && (err == nil || expect.Names(err, "one is -0.5")), "%T, a reward of %g: %v", a, reward, err)
		}
	}
}

// TestChecks: options that do not fit are refused by name, and those at the edge are not.
func TestChecks(t *testing.T) {
	distill := func(change func(a *Distill)) *Distill {
		a := New[Distill]()
		a.Teacher = "t"
		change(a)
		return a
	}
	context := func(kind, prompt string, feedback bool) *Distill {
		return distill(func(a *Distill) { a.Context.Kind, a.Context.Prompt, a.Context.Feedback = kind, prompt, feedback })
	}
	for _, test := range []struct {
		a       Algorithm
		samples int
		want    string // "" = no error
	}{
		{New[GRPO](), 1, "group"}, {New[GSPO](), 1, "group"}, {New[CISPO](), 1, "group"}, {New[SAPO](), 1, "group"}, {New[GPG](), 1, "group"}, {New[RLOO](), 1, "leave_one_out"},
		{&Reinforce{Baseline: "greedy"}, 1, ""}, {&Reinforce{Baseline: "group"}, 1, "group"}, {New[Reinforce](), 1, ""},
		{&ReinforcePlusPlus{Baseline: "group"}, 1, "plus_baseline group"}, {&ReinforcePlusPlus{Baseline: "group"}, 2, ""}, {New[ReinforcePlusPlus](), 1, ""},
		{&GSPO{Reduction: Reduction{"token"}}, 2, "reduction token"}, {&GSPO{Reduction: Reduction{"sum"}}, 2, ""}, {&GSPO{TwoSided: TwoSided{1}}, 2, "delta: 1 must be above 1 + clip_high, 1"},
		{&GRPO{Clip: Clip{High: 0.5}, TwoSided: TwoSided{1.5}}, 2, "delta: 1.5 must"}, {&GRPO{Clip: Clip{High: 0.5}, TwoSided: TwoSided{1.75}}, 2, ""}, {&GRPO{Clip: Clip{High: 0.5}}, 2, ""},
		{&PPO{TwoSided: TwoSided{1}}, 1, "delta: 1 must"}, {&CISPO{Floor: 0.5, Cap: 0.5}, 2, ""}, {&CISPO{Floor: 0.6, Cap: 0.5}, 2, "ratio_floor: 0.6 is above ratio_cap 0.5"},
		{&Replay{Min: 1, Max: 1}, 1, ""}, {&Replay{Min: 2, Max: 1}, 1, "return_min: 2 is above return_max 1"}, {&Replay{Min: math.NaN(), Max: 1}, 1, "return_min: NaN"},
		{New[Distill](), 1, "needs teacher"}, {distill(func(*Distill) {}), 1, ""}, {distill(func(a *Distill) { a.Server.URL = "u" }), 1, "teacher_url: needs divergence sampled"},
		{distill(func(a *Distill) { a.Server.URL, a.Divergence = "u", sampled }), 1, ""}, {distill(func(a *Distill) { a.Server.URL, a.Divergence, a.Teacher = "u", sampled, TeacherSelf }), 1, "leave out teacher self"},
		{distill(func(a *Distill) { a.Server.URL, a.Divergence, a.Context.Kind = "u", sampled, Sibling }), 2, "leave out teacher self and teacher_context"},
		{distill(func(a *Distill) { a.Teacher = TeacherSelf }), 1, "teacher self needs teacher_context"}, {context(Demonstration, "", false), 1, ""},
		{context(Sibling, "", false), 1, "teacher_context: sibling needs at least 2"}, {context(Sibling, "", false), 2, ""}, {context(Sibling, "", true), 1, ""},
		{context(Sibling, "{solution}", false), 2, "must contain {prompt}"}, {context(Sibling, "{prompt}", false), 2, "must contain {solution}"}, {context(Sibling, "{prompt}{feedback}", true), 2, ""},
		{context(Sibling, "{prompt}{solution}", true), 2, "{feedback} and include_environment_feedback"}, {context(Sibling, "{prompt}{solution}{feedback}", false), 2, "{feedback} and"},
		{&DPO{}, 1, "empty"}, {&DPO{Losses: []string{"sft", "kto"}}, 1, "combined with sft"}, {&DPO{Losses: []string{"sft", "sft"}}, 1, "given twice"},
		{&DPO{Losses: []string{"sigmoid", "ipo"}, Smoothing: 0.1}, 1, "ipo has no label_smoothing"}, {&DPO{Losses: []string{"sft"}, Weights: []string{"x"}}, 1, `"x" is not a number`},
		{&DPO{Losses: []string{"sft"}, Weights: []string{"1", "2"}}, 1, "2 weights for 1 losses"},
		{&OnlineDPO{DPO{Losses: []string{"kto"}}}, 2, "single responses"}, {&OnlineDPO{DPO{Losses: []string{"sft"}}}, 1, "samples_per_prompt: 1 is too few"},
		{&OnlineDPO{DPO{Losses: []string{"sft"}}}, 2, ""}, {&OnlineDPO{DPO{Losses: []string{"sft"}, Weights: []string{"0"}}}, 2, `loss_weights: "0"`}, {&DPO{Losses: []string{"sft"}, Weights: []string{"1e6"}}, 1, ""},
		{&DPO{Losses: []string{"sft"}, Weights: []string{"1e7"}}, 1, `loss_weights: "1e7"`},
	} {
		err := test.a.Check(test.samples)
		expect.True(t, (err == nil) == (test.want == "") && (err == nil || expect.Names(err, test.want)), "%T %+v with %d samples: %v, want %q", test.a, test.a, test.samples, err, test.want)
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
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		for delta, masked := range map[float64]float64{1 - math.Exp(-0.5): 0, 0.39: 1} { // the first is the distance
			x := &rl.Sample{Actions: []int32{0}, Old: []float32{0}, Advantage: []float32{-1}}
			one := s.Floats([]float32{1}, 1)
			b := &Batch{LogProbs: s.Floats([]float32{-0.5}, 1), Advantage: one, Weight: one, Actions: 1, Part: []*rl.Sample{x}, Figures: map[string]float64{}}
			(&DPPO{Divergence: "tv", Delta: delta, Cap: 20}).Loss(s, b)
			expect.Same(t, masked, b.Figures["dppo/masked_ratio"], "tokens left out beyond %v", delta)
		}
		// With k = 0 VESPO's weight of a completion is exp(λ − λ·ratio), here of a ratio of 3.
		of, three := func(values ...float32) torch.Tensor { return s.Floats(values, 3) }, float32(math.Log(3))
		good := &rl.Sample{Actions: []int32{0, 0}, Old: []float32{0, 0}, Advantage: []float32{0, 0}}
		bad := &rl.Sample{Actions: []int32{0}, Old: []float32{0}, Advantage: []float32{-1}}
		b := &Batch{LogProbs: of(three, 0, three), Old: of(0, 0, 0), Advantage: of(0, 0, -1), Weight: of(1, 1, 1), Samples: 2, Actions: 3, Part: []*rl.Sample{good, bad}, Figures: map[string]float64{}}
		(&VESPO{PositiveDecay: math.Ln2 / 2, NegativeDecay: math.Ln2}).Loss(s, b)
		expect.True(t, math.Abs(b.Figures["vespo/phi_mean"]-(0.5+0.25)/2) <= 1e-6, "mean weight %v", b.Figures["vespo/phi_mean"])
	})
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

// TestClipCovLeavesOutSome: the number of actions is a fraction of all, at least one and at most the candidates, and another stream
// picks others.
func TestClipCovLeavesOutSome(t *testing.T) {
	var batch []*rl.Sample
	now := Selection{}
	for i := range 20 {
		x := &rl.Sample{}
		for j := range 5 {
			x.Actions, x.Advantage = append(x.Actions, 0), append(x.Advantage, float32(i%4)-1.5)
			now[x] = append(now[x], -float32(i*j%7))
		}
		batch = append(batch, x)
	}
	picked := func(fraction, low, high float64, seed uint64) (n int, where []int) {
		a := &ClipCov{Clip: Clip{Low: 0.2, High: 0.2}, Fraction: fraction, Low: low, High: high}
		selected := a.pick(batch, now, rl.Stream(seed))
		for i, x := range batch {
			for _, v := range selected[x] {
				if v == 1 {
					n, where = n+1, append(where, i)
				}
			}
		}
		return n, where
	}
	candidates, _ := picked(1, 1, 5, 1)
	expect.Require(t, candidates > 10 && candidates < 40, "%d candidates", candidates)
	some, first := picked(0.1, 1, 5, 1)
	_, second := picked(0.1, 1, 5, 2)
	least, _ := picked(1e-4, 1, 5, 1)
	none, _ := picked(1, 50, 60, 1)
	expect.True(t, some == 10 && least == 1 && none == 0, "%d of 100 actions for a tenth, %d for 1e-4, %d without candidates", some, least, none)
	// Two actions have the same covariance, a quarter of the product of the differences.
	for name, test := range map[string]struct {
		advantage, now, old []float32
		clip, high          float64
		want                []float32
	}{
		"at the lower bound":        {[]float32{1, 1}, []float32{-1, -2}, nil, 0.2, 5, []float32{0, 0}},
		"between the bounds":        {[]float32{1, -1}, []float32{0, -2}, nil, 0.2, 5, []float32{1, 1}},
		"at the upper bound":        {[]float32{1, -1}, []float32{0, -2}, nil, 0.2, 1, []float32{0, 0}},
		"held back by the clip":     {[]float32{1, -1}, []float32{0, -2}, []float32{-1, -1}, 0.2, 5, []float32{0, 0}},
		"at the clip":               {[]float32{1, -1}, []float32{0, -2}, []float32{0, -2}, 0, 5, []float32{1, 1}},
		"no advantage, more likely": {[]float32{0, -2}, []float32{0, -2}, []float32{-1, -1}, 0.2, 5, []float32{1, 0}},
		"no advantage, less likely": {[]float32{2, 0}, []float32{0, -2}, []float32{-1, -1}, 0.2, 5, []float32{0, 1}},
	} {
		x := &rl.Sample{Actions: []int32{0, 0}, Advantage: test.advantage, Old: test.old}
		a := &ClipCov{Clip: Clip{Low: test.clip, High: test.clip}, Fraction: 1, Low: 0, High: test.high}
		expect.Equal(t, test.want, a.pick([]*rl.Sample{x}, Selection{x: test.now}, rl.Stream(1))[x], name)
	}
	different := false
	for i := range first {
		different = different || first[i] != second[i]
	}
	expect.True(t, different, "another stream picks the same actions")
}

func TestAcceptedCompletions(t *testing.T) {
	groups := [][]struct {
		token   int32
		reward  float64
		penalty float64
		masked  bool
	}{
		{{1, 1, 0, false}, {2, 2, 0, false}, {3, 2, 0, false}, {2, 2, 0, false}},      // two best, one of them twice
		{{4, 0.9, 0, false}, {5, math.NaN(), 0, false}, {6, 0, 0, false}},             // none is good enough
		{{7, 1.5, -1, false}, {8, 3, 0, true}, {9, 1, 0, false}, {10, 1.2, 0, false}}, // a penalty, and one that was cut off
	}
	for keep, want := range map[string][]int32{"best": {2, 10}, "all": {1, 2, 3, 9, 10}} {
		step := &rl.Step{Figures: rl.Meter{}}
		for g, group := range groups {
			var all []*rl.Sample
			for i, c := range group {
				x := &rl.Sample{Prompt: g, Index: i, Tokens: []int32{0, c.token}, Actions: []int32{c.token}, Rewards: []float64{c.reward}, Overlong: c.penalty}
				if all = append(all, x); x.HasReward() && !c.masked {
					step.Samples = append(step.Samples, x)
				}
			}
			step.Groups = append(step.Groups, all)
		}
		(&RFT{MinReward: 1, Keep: keep}).accept(step)
		var got []int32
		for _, x := range step.Samples {
			got = append(got, x.Tokens[1])
			expect.Equal(t, []float32{1}, x.Advantage)
		}
		expect.Equal(t, want, got, keep)
		expect.Same(t, float64(len(want))/9, step.Figures.Get("rft/accepted_ratio"), "accepted")
		expect.Same(t, 2./3, step.Figures.Get("rft/solved_ratio"), "prompts with an accepted completion")
	}
}

// TestDistilledActions: the figures of the divergence "sampled" are means over actions.
func TestDistilledActions(t *testing.T) {
	step := &rl.Step{Figures: rl.Meter{}, Samples: []*rl.Sample{
		{Actions: []int32{1, 2}, Old: []float32{-1, -2}, Teacher: []float32{-0.5, -3}}, {Actions: []int32{1}, Old: []float32{-4}, Teacher: []float32{-1}},
	}}
	a := &Distill{Divergence: "sampled"}
	must.Do(t, a.Prepare(step))
	expect.Equal(t, []float32{0.5, -1}, step.Samples[0].Advantage)
	expect.Equal(t, []float32{3}, step.Samples[1].Advantage)
	expect.Equal(t, []float64{-2.5 / 3, -1.5}, []float64{step.Figures.Get("divergence"), step.Figures.Get("logps/teacher")}, cmpopts.EquateApprox(1e-12, 0))
	none := &rl.Step{Figures: rl.Meter{}, Samples: []*rl.Sample{{Actions: []int32{1}}}}
	must.Do(t, a.Prepare(none))
	expect.Equal(t, rl.Meter{}, none.Figures, "without a teacher's probabilities")
}
