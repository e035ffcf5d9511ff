package train

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// trlPreferences is the content of testdata/trl.json, written by scripts/fixtures/preferences.py.
type trlPreferences struct {
	Beta      float64 `json:"beta"`
	Smoothing float64 `json:"label_smoothing"`
	Gamma     float64 `json:"simpo_gamma"`
	Alpha     float64 `json:"cpo_alpha"`
	Pairs     []struct {
		Prompt   []int32 `json:"prompt"`
		Chosen   []int32 `json:"chosen"`
		Rejected []int32 `json:"rejected"`
	} `json:"pairs"`
	Reference struct{ Chosen, Rejected, Mismatched []float32 } `json:"reference"`
	Losses    map[string]struct {
		Weights      []float64          `json:"weights"`
		Smoothing    float64            `json:"label_smoothing"`
		Loss         float64            `json:"loss"`
		Metrics      map[string]float64 `json:"metrics"`
		GradientNorm float64            `json:"gradient_norm"`
		Gradient     []float64          `json:"gradient"`
	} `json:"losses"`
}

// answered is a sample with sum as the reference's log-probability of its answer.
func answered(unit, index int, prompt, answer []int32, sum float32) *rl.Sample {
	x := &rl.Sample{Tokens: slices.Concat(prompt, answer), Actions: answer, Prompt: unit, Index: index, Truth: int32(1 - index), Reference: make([]float32, len(answer))}
	x.Reference[0] = sum
	for i := range answer {
		x.Rows = append(x.Rows, len(prompt)-1+i)
	}
	return x
}

// TestPreferencesAsTRL compares loss, metrics and gradient with TRL's on the same model and batch.
func TestPreferencesAsTRL(t *testing.T) {
	torchtest.NoLeaks(t)
	want := must.Into[trlPreferences](t, files.LoadJSON, "testdata/trl.json")
	var pairs, single []*rl.Sample
	for i, pair := range want.Pairs {
		pairs = append(pairs, answered(i, 0, pair.Prompt, pair.Chosen, want.Reference.Chosen[i]), answered(i, 1, pair.Prompt, pair.Rejected, want.Reference.Rejected[i]))
	}
	for i, x := range []*rl.Sample{pairs[0], pairs[2], pairs[1], pairs[3], pairs[5]} {
		y := *x
		y.Prompt, y.Index = i, 0
		single = append(single, &y)
	}
	for name, w := range want.Losses {
		t.Run(name, func(t *testing.T) {
			p := must.Open(policy.NewCausalLM(policy.Config{Dir: policytest.Fixture(t, "causal/llama"), Full: true}))(t)
			a := &algo.DPO{Losses: strings.Split(name, ","), Beta: want.Beta, Smoothing: w.Smoothing, SimPOGamma: want.Gamma, CPOAlpha: want.Alpha, DesirableWeight: 1.5, UndesirableWeight: 0.5}
			if len(w.Weights) == 2 {
				a.Weights = []string{"1", "0.5"}
			}
			samples := slices.Clone(pairs)
			if !a.Needs().Reference {
				for i, x := range samples {
					y := *x
					y.Reference = nil
					samples[i] = &y
				}
			}
			step := &rl.Step{Samples: samples, Figures: rl.Meter{}}
			if a.Unpaired() {
				samples, step.Samples = single, single
				for i, x := range single {
					y := epochs.Mismatched(x, single[(i+1)%len(single)], 96)
					y.Reference = make([]float32, y.Len())
					y.Reference[0] = want.Reference.Mismatched[i]
					step.KLSamples = append(step.KLSamples, y)
				}
			}
			shared := &training{policy: p, algorithm: a, needs: a.Needs(), config: Config{}.complete()}
			passes := &passes{ranks: &ranks{training: shared}}
			shared.needs.Reference = false // it has been computed
			must.Do(t, (&scorer{passes: passes}).askAside(step.KLSamples))
			must.Do(t, a.Prepare(step))
			u := must.Get((&updater{passes: passes}).gradient(samples))(t)
			near := func(what string, got, want float64) {
				expect.True(t, math.Abs(got-want) <= 1e-4*(1+math.Abs(want)), "%s %v, TRL has %v", what, got, want)
			}
			near("loss", u.figures["loss"], w.Loss)
			if nll, has := u.figures["nll_loss"]; name == "sigmoid,sft" {
				near("nll_loss", nll, (w.Loss-want.Losses["sigmoid"].Loss)/0.5)
			} else {
				expect.Same(t, name == "cpo" || name == "orpo", has, "a figure nll_loss")
			}
			for figure, value := range w.Metrics {
				switch figure {
				case "kl":
					near(figure, step.Figures.Get("kl"), value)
				case "entropy":
					near(figure, u.entropy/u.actions, value)
				case "mean_token_accuracy":
					near(figure, u.right/u.judged, value)
				default:
					near(figure, u.figures[figure], value)
				}
			}
			nearGradient(t, p, near, w.GradientNorm, w.Gradient)
		})
	}
}

// gradientOf is the gradient of the first matrix of a shape: [24, 40] is the first layer's down projection.
func gradientOf(t *testing.T, p *policy.CausalLM, rows, columns int64) (grad []float32) {
	t.Helper()
	for _, v := range p.Params() {
		shape := must.Get(v.Shape())(t)
		if slices.Equal(shape, []int64{rows, columns}) && grad == nil {
			torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
				if g, ok := s.Grad(v); ok {
					grad = s.Read(g)
				}
			})
		}
	}
	expect.Require(t, len(grad) == int(rows*columns), "%d values of the gradient", len(grad))
	return grad
}

// nearGradient compares the gradient of the first down projection, and its norm, with TRL's.
func nearGradient(t *testing.T, p *policy.CausalLM, near func(what string, got, want float64), norm float64, want []float64) {
	t.Helper()
	grad, square := gradientOf(t, p, 24, 40), 0.0
	for _, g := range grad {
		square += float64(g) * float64(g)
	}
	near("norm of the gradient", math.Sqrt(square), norm)
	for i, g := range want {
		near("gradient", float64(grad[i]), g)
	}
}

// trlGRPO is the content of testdata/trl_grpo.json, written by scripts/fixtures/grpo.py.
type trlGRPO struct {
	Rows []struct {
		Prompt, Completion []int32
		Advantage          float32
		Old, Reference     []float32
		Truncated          bool
	}
	Longest int
	Cases   []trlCase
}

// trlCase is a setting of TRL with its results.
type trlCase struct {
	LossType          string `json:"loss_type"`
	Beta              float64
	Corrected, Masked bool
	ClipLow           float64 `json:"clip_low"`
	ClipHigh          float64 `json:"clip_high"`
	Level             string
	Delta             float64
	Quantile, Coef    float64
	Adaptive          *struct{ Target, Last float64 }
	NextCoef          float64 `json:"next_coef"` // after the update
	Entropy           float64 // of the update, with Adaptive
	Loss              float64
	GradientNorm      float64 `json:"gradient_norm"`
	Gradient          []float64
}

// objective is the algorithm that TRL's options name.
func (c *trlCase) objective() algo.Algorithm {
	clip, two := algo.Clip{Low: c.ClipLow, High: c.ClipHigh}, algo.TwoSided{Delta: c.Delta}
	reduction := algo.Reduction{Reduction: map[string]string{"grpo": algo.ReduceSequence, "dr_grpo": algo.ReduceDrGRPO, "luspo": algo.ReduceSum}[c.LossType]}
	switch {
	case c.Level == "sequence":
		return &algo.GSPO{Clip: clip, Reduction: reduction}
	case c.LossType == "cispo":
		return &algo.CISPO{Cap: c.ClipHigh}
	case c.LossType == "sapo":
		return algo.New[algo.SAPO]()
	case c.LossType == "vespo":
		return algo.New[algo.VESPO]()
	case c.LossType == "gmpo":
		return &algo.GMPO{Low: c.ClipLow, High: c.ClipHigh}
	}
	return &algo.GRPO{Clip: clip, TwoSided: two, Reduction: reduction}
}

// TestGRPOAsTRL compares loss and gradient with TRL's on the same model and completions: GRPO for each way of averaging, and
// the objectives that TRL has besides, with and without the KL, its correction, completions that were cut off and masked, the
// tokens of the highest entropy alone, and an entropy bonus whose coefficient adapts.
func TestGRPOAsTRL(t *testing.T) {
	torchtest.NoLeaks(t)
	want := must.Into[trlGRPO](t, files.LoadJSON, "testdata/trl_grpo.json")
	for _, c := range want.Cases {
		t.Run(fmt.Sprintf("%s by %s, delta %g, beta %g, corrected %v, masked %v, top %g, entropy %g %v", c.LossType, c.Level, c.Delta, c.Beta, c.Corrected, c.Masked, c.Quantile, c.Coef, c.Adaptive), func(t *testing.T) {
			p := must.Open(policy.NewCausalLM(policy.Config{Dir: policytest.Fixture(t, "causal/llama"), Full: true}))(t)
			step := &rl.Step{Figures: rl.Meter{}}
			for i, row := range want.Rows {
				x := answered(i, 0, row.Prompt, row.Completion, 0)
				x.Old, x.Reference = row.Old, row.Reference
				for range x.Actions {
					x.Advantage = append(x.Advantage, row.Advantage)
				}
				if row.Truncated && c.Masked {
					step.Masked++
				} else {
					step.Samples = append(step.Samples, x)
				}
			}
			a := c.objective()
			config := Config{Steps: 1, Samples: 2, Longest: want.Longest, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant"}, Regularisation: Regularisation{KLCoef: c.Beta, KLType: string(rl.K3), KLCorrection: c.Corrected, EntropyCoef: c.Coef}, Uncertain: Uncertain{TopEntropy: c.Quantile}}
			if c.Adaptive != nil {
				config.EntropyControl = EntropyControl{Adaptive: true, Target: c.Adaptive.Target, Delta: 0.005, Max: 1}
			}
			trainer := must.Open(New(p, fixed(func(int) *rl.Step { return step }), a, config, (&recorded{}).hooks()))(t)
			trainer.updater.masked = float64(step.Masked) / float64(len(step.Samples))
			if c.Adaptive != nil {
				trainer.state.Entropy = &entropyState{Coef: c.Coef, Last: c.Adaptive.Last}
			}
			u := must.Get(trainer.updater.gradient(step.Samples))(t)
			near := func(what string, got, want float64) {
				expect.True(t, math.Abs(got-want) <= 1e-5*(1+math.Abs(want)), "%s %v, TRL has %v", what, got, want)
			}
			if c.LossType != "gmpo" || !c.Masked { // TRL's loss counts −A of masked completions there
				near("loss", u.figures["loss"], c.Loss)
			}
			if trainer.adaptEntropy(u.certainty()); c.Adaptive != nil {
				near("mean entropy", trainer.state.Entropy.Last, c.Entropy)
				near("next coefficient", trainer.state.Entropy.Coef, c.NextCoef)
			}
			nearGradient(t, p, near, c.GradientNorm, c.Gradient)
		})
	}
}

// TestSelfDistillationAsTRL compares loss and gradient with those of TRL's trainers in float64, on the same model and completions after
// the same prompts. One completion has no context. The loss of sampled tokens has another value in TRL and the same gradient.
func TestSelfDistillationAsTRL(t *testing.T) {
	torchtest.NoLeaks(t)
	want := must.Into[struct {
		Rows []struct{ Prompt, Context, Completion []int32 }
		// Cases: Alpha is 0 for the forward KL, 1 for the reverse one, else jsd_beta.
		Cases []struct {
			Mode               string
			Alpha, Temperature float64
			Loss               float64
			GradientNorm       float64 `json:"gradient_norm"`
			Gradient           []float64
		}
	}](t, files.LoadJSON, "testdata/trl_self_distillation.json")
	for _, c := range want.Cases {
		t.Run(fmt.Sprintf("%s, alpha %g, temperature %g", c.Mode, c.Alpha, c.Temperature), func(t *testing.T) {
			p := must.Open(policy.NewCausalLM(policy.Config{Dir: policytest.Fixture(t, "causal/llama"), Full: true}))(t)
			step := &rl.Step{Figures: rl.Meter{}}
			for i, row := range want.Rows {
				x := answered(i, 0, row.Prompt, row.Completion, 0)
				x.Context = row.Context
				step.Samples = append(step.Samples, x)
			}
			a := &algo.Distill{Teacher: algo.TeacherSelf, Divergence: map[float64]string{0: "forward", 1: "reverse"}[c.Alpha], Mix: c.Alpha, Self: algo.SelfTeacher{Kind: algo.TeacherLive}, Context: algo.TeacherContext{Kind: algo.Demonstration}}
			if a.Divergence == "" {
				a.Divergence = "jsd"
			}
			if c.Mode == "sampled_token" {
				a.Divergence = "sampled"
			}
			config := Config{Steps: 1, Temperature: c.Temperature, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant"}}
			trainer := must.Open(New(p, fixed(func(int) *rl.Step { return step }), a, config, (&recorded{}).hooks()))(t)
			must.Do(t, trainer.scorer.takeReference())
			trainer.scored = trainer.scoresFirst()
			trainer.needs.Choose(step)
			must.Do(t, trainer.scorer.score(step))
			must.Do(t, trainer.prepare(step, step.Samples))
			trainer.updater.masked = float64(step.Masked) / float64(len(step.Samples))
			u := must.Get(trainer.updater.gradient(step.Samples))(t)
			near := func(what string, got, want float64) {
				expect.True(t, math.Abs(got-want) <= 1e-6*(1+math.Abs(want)), "%s %v, TRL has %v", what, got, want)
			}
			if c.Mode != "sampled_token" {
				near("loss", u.figures["loss"], c.Loss)
			}
			nearGradient(t, p, near, c.GradientNorm, c.Gradient)
		})
	}
}
