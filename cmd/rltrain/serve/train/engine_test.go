package train

import (
	"context"
	"encoding/json"
	"math"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote/tinker"
	"github.com/rltrain/rltrain/rl/report"
	rltrun "github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// engine is a policy that is trained by a server under test.
func (s *service) engine(seed uint64, from string) *tinker.Policy {
	s.t.Helper()
	words := must.Get(policy.ReadCausalLM(s.model))(s.t)
	s.t.Cleanup(words.Close)
	p := must.Get(tinker.New(s.t.Context(), words, tinker.Config{URL: s.root(), Key: "tml-key", Rank: 4, Seed: seed, From: from}))(s.t)
	s.t.Cleanup(p.Close)
	return p
}

func (s *service) root() string { return s.url[:len(s.url)-len("/api/v1/")] }

// recorded gives the same samples in each step.
type recorded struct {
	samples func() *rl.Step
}

func (r recorded) Next(context.Context, rl.At) (*rl.Step, error) { return r.samples(), nil }
func (recorded) State() any                                      { return nil }
func (recorded) Restore(json.RawMessage) error                   { return nil }

// lessons of all kinds, made of texts: the first token is the prompt.
func recordedTexts(rewards bool) *rl.Step {
	step := &rl.Step{Figures: rl.Meter{}}
	for i, ids := range texts {
		for k := range 2 {
			x := &rl.Sample{Prompt: i, Index: k, Truth: 1}
			for j, id := range ids[:len(ids)-k] {
				x.Tokens = append(x.Tokens, int32(id+k))
				if j > 0 {
					x.Rows, x.Actions = append(x.Rows, j-1), append(x.Actions, int32(id+k))
				}
			}
			if rewards {
				x.Rewards = make([]float64, len(x.Actions))
				x.Rewards[len(x.Actions)-1] = float64(k*(i+1)) - 0.3
			}
			step.Samples = append(step.Samples, x)
		}
	}
	for i := range texts {
		step.Groups = append(step.Groups, step.Samples[2*i:2*i+2])
	}
	return step
}

var objectives = map[string]func(c *train.Config) algo.Algorithm{
	"sft": func(*train.Config) algo.Algorithm { return algo.New[algo.SFT]() },
	"grpo": func(c *train.Config) algo.Algorithm {
		c.KLCoef, c.Samples, c.Epochs, c.Minibatches = 0.1, 2, 2, 2
		return algo.New[algo.GRPO]()
	},
	"cispo": func(c *train.Config) algo.Algorithm {
		c.Samples, c.Epochs = 2, 2
		return algo.New[algo.CISPO]()
	},
	"gspo": func(c *train.Config) algo.Algorithm {
		c.Samples, c.Epochs = 2, 3
		return algo.New[algo.GSPO]()
	},
	"dpo": func(*train.Config) algo.Algorithm { return algo.New[algo.DPO]() },
	"simpo": func(*train.Config) algo.Algorithm {
		a := algo.New[algo.DPO]()
		a.Losses = []string{"simpo"}
		return a
	},
}

// learnt are the losses and the norms of the gradient of five steps.
func learnt(t *testing.T, p policy.Policy, objective func(c *train.Config) algo.Algorithm) (losses, norms []float64) {
	t.Helper()
	c := train.Defaults(5)
	c.LearningRate, c.Schedule, c.MaxGradNorm = 1e-2, "constant", 0.5
	a := objective(&c)
	_, err := train.Run(t.Context(), p, recorded{func() *rl.Step { return recordedTexts(a.Needs().Rewards) }}, a, c, rltrun.Hooks{Row: func(row report.Row) error {
		if loss, ok := row["loss"].(float64); ok {
			losses, norms = append(losses, loss), append(norms, row["grad_norm"].(float64))
		}
		return nil
	}})
	must.Do(t, err)
	expect.Require(t, len(losses) == 5, "%d rows of 5 steps", len(losses))
	return losses, norms
}

// TestEngineEqualsTrainer trains a policy on the service and one in this process.
func TestEngineEqualsTrainer(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "model"), t.TempDir(), 8)
	remote := map[string][2][]float64{}
	for name, objective := range objectives {
		losses, norms := learnt(t, s.engine(7, ""), objective)
		remote[name] = [2][]float64{losses, norms}
	}
	s.stop()
	for name, objective := range objectives {
		p := must.Get(policy.NewCausalLM(policy.Config{Dir: s.model, R: 4, Alpha: alpha, Seed: 7, Targets: []string{policy.AllLinear}}))(t)
		losses, norms := learnt(t, p, objective)
		p.Close()
		for i := range losses {
			expect.True(t, math.Abs(losses[i]-remote[name][0][i]) < 1e-5, "%s, step %d: loss %g on the service, %g here", name, i+1, remote[name][0][i], losses[i])
			expect.True(t, math.Abs(norms[i]/remote[name][1][i]-1) < 1e-3, "%s, step %d: gradient's norm %g on the service, %g here", name, i+1, remote[name][1][i], norms[i])
		}
		expect.True(t, losses[4] != losses[0], "%s: nothing was learned", name)
	}
}
