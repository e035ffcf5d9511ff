package train

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestSelfDistillationAsTRL compares loss and gradient with those of TRL's trainers in float64, on the same model and completions after
// the same prompts. One completion has no context. The loss of sampled tokens has another value in TRL and the same gradient.
func TestSelfDistillationAsTRL(t *testing.T) {
	torchtest.NoLeaks(t)
	var want struct {
		Rows []struct{ Prompt, Context, Completion []int32 }
		// Cases: Alpha is 0 for the forward KL, 1 for the reverse one, else jsd_beta.
		Cases []struct {
			Mode               string
			Alpha, Temperature float64
			Loss               float64
			GradientNorm       float64 `json:"gradient_norm"`
			Gradient           []float64
		}
	}
	must.Do(t, files.LoadJSON("testdata/trl_self_distillation.json", &want))
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
					got := must.Get(run.TakeSnapshot(trainer.config.Teacher))(t)
					expect.Equal(t, want, got, fmt.Sprintf("weights after step %d", step))
				}
			})
		}
	}
}
