package train

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestLabelSmoothingAsTransformers compares loss and gradients with LabelSmoother's, in one forward pass and in several.
func TestLabelSmoothingAsTransformers(t *testing.T) {
	torchtest.NoLeaks(t)
	var want struct {
		Rows  []struct{ Prompt, Completion []int32 }
		Cases []struct {
			Epsilon, Loss  float64
			Gradient, Head []float64
		}
	}
	must.Do(t, files.LoadJSON("testdata/label_smoothing.json", &want))
	for _, c := range want.Cases {
		for _, limit := range []int{0, 10} {
			p := must.Open(policy.NewCausalLM(policy.Config{Dir: policytest.Fixture(t, "causal/llama"), Full: true}))(t)
			var samples []*rl.Sample
			for i, row := range want.Rows {
				x := answered(i, 0, row.Prompt, row.Completion, 0)
				x.Reference = nil
				samples = append(samples, x)
			}
			config := Config{Steps: 1, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant"}, Memory: Memory{MicroTokens: limit}}
			trainer := must.Open(New(p, fixed(nil), &algo.SFT{Smoothing: algo.Smoothing{Factor: c.Epsilon}}, config, (&recorded{}).hooks()))(t)
			u := must.Get(trainer.updater.gradient(samples))(t)
			near := func(what string, got, want float64) {
				expect.True(t, math.Abs(got-want) <= 1e-5*(1+math.Abs(want)), "epsilon %g, %d tokens a pass: %s %v, transformers has %v", c.Epsilon, limit, what, got, want)
			}
			near("loss", u.figures["loss"], c.Loss)
			grad, head := gradientOf(t, p, 24, 40), gradientOf(t, p, 61, 24)
			for i, g := range c.Gradient {
				near("gradient", float64(grad[i]), g)
			}
			for i, g := range c.Head {
				near("gradient of the head", float64(head[i]), g)
			}
		}
	}
}

// TestNoiseIsOfTrainingAlone: the noise moves the loss that is trained on, and differs from step to step; an evaluation has none.
func TestNoiseIsOfTrainingAlone(t *testing.T) {
	losses := map[float64]float64{}
	for _, alpha := range []float64{0, 20} {
		p := tinyToken(t, 4)
		samples := policy.Samples(texts(3))
		config := Config{Steps: 1, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant"}}
		trainer := must.Open(New(p, fixed(nil), &algo.SFT{Noise: alpha}, config, (&recorded{}).hooks()))(t)
		before := must.Get(evaluate.Loss(p, samples, 1).Run(t.Context(), 0))(t).Score
		losses[alpha] = must.Get(trainer.updater.gradient(samples))(t).figures["loss"]
		trainer.state.Step++
		next := must.Get(trainer.updater.gradient(samples))(t).figures["loss"]
		expect.True(t, (math.Abs(next-losses[alpha]) > 1e-4) == (alpha > 0), "noise %g: losses %v and %v of two steps", alpha, losses[alpha], next)
		expect.Same(t, before, must.Get(evaluate.Loss(p, samples, 1).Run(t.Context(), 0))(t).Score, "noise %g: score of an evaluation", alpha)
	}
	expect.True(t, math.Abs(losses[0]-losses[20]) > 1e-3, "losses are %v", losses)
}
