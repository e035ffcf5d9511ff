package train

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
)

// TestTrialTakesTheHeaviestStep and trains on the last tokens of its first samples, or of its first unit.
func TestTrialTakesTheHeaviestStep(t *testing.T) {
	for name, test := range map[string]struct {
		together        bool
		samples, tokens int
	}{
		"samples": {false, trialSamples, trialTokens},
		"a unit":  {true, 4, trialTokens},
	} {
		source := &small{Source: batches{}, together: test.together, steps: 3}
		for range trialSteps {
			step := must.Get(source.Next(context.Background(), rl.At{}))(t)
			n := rl.Tokens(step.Samples)
			expect.True(t, len(step.Samples) == test.samples && n == test.tokens, "%s: %d samples with %d tokens, want %d with %d", name, len(step.Samples), n, test.samples, test.tokens)
			for _, x := range step.Samples {
				for i, row := range x.Rows {
					expect.Require(t, x.Tokens[row+1] == x.Actions[i], "%s: row %d predicts token %d, want %d", name, row, x.Tokens[row+1], x.Actions[i])
				}
				last := x.Actions[len(x.Actions)-1]
				expect.True(t, last == 15999, "%s: the last action is %d, want the sample's last", name, last)
			}
		}
		expect.True(t, source.samples == 8 && source.longest == 16000 && source.tokens == 8*16000,
			"%s: the step has %d samples with %d tokens, the longest %d; want those before the cut", name, source.samples, source.tokens, source.longest)
	}
}

// TestAdviceOfRates: only rates for SFT that are far from the rule of thumb get a warning.
func TestAdviceOfRates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny") // a llama of hidden size 32: 0.0126 for an adapter
	must.Do(t, policy.TinyModel(dir, 1, 32, 1))
	p := must.Open(policy.NewCausalLM(policy.Config{Dir: dir, R: 2, Alpha: 4}))(t)
	for rate, want := range map[float64]string{1e-3: "raise --learning-rate 0.001 ", 4e-3: "", 0.05: "", 0.1: "lower --learning-rate 0.1 "} {
		w := &work{stage: supervisedStage, policy: p}
		w.settings.LearningRate = rate
		got := advice(w)
		expect.True(t, (got == "") == (want == "") && strings.Contains(got, want), "rate %g: %q, want %q", rate, got, want)
		w.stage = rlStage
		expect.Same(t, "", advice(w), "advice for RL")
	}
}

// batches is a data set of three steps, of 8 samples of two units each; the second step has the longest.
type batches struct{}

func (batches) PerEpoch() int                 { return 3 }
func (batches) State() any                    { return nil }
func (batches) Restore(json.RawMessage) error { return nil }
func (batches) Next(_ context.Context, at rl.At) (*rl.Step, error) {
	length := []int{1000, 16000, 500}[at.Step]
	step := &rl.Step{}
	for i := range 8 {
		x := &rl.Sample{Prompt: i / 4}
		for token := range length {
			x.Tokens = append(x.Tokens, int32(token))
		}
		for row := length / 2; row < length-1; row++ {
			x.Rows, x.Actions = append(x.Rows, row), append(x.Actions, x.Tokens[row+1])
		}
		step.Samples = append(step.Samples, x)
	}
	return step, nil
}

// TestTrialLimitsRollouts whatever the options ask for.
func TestTrialLimitsRollouts(t *testing.T) {
	buffer := &rollout.ReplayOptions{PromptsPerStep: 512, NumUpdateSteps: 4096, CacheBuffer: true}
	asked := rollout.Setup{Options: buffer, Rollout: rollout.TokensConfig{MaxNew: 4096, MaxTotal: 9000}}
	asked.Rollout.PromptsPerStep, asked.Rollout.SamplesPerPrompt, asked.Rollout.DynamicSampling = 512, 64, true
	limited := asked
	(&trial{}).limit(&limited)
	r := limited.Rollout
	got := []int{r.PromptsPerStep, r.SamplesPerPrompt, r.MaxNew, r.MaxTotal}
	want := []int{1, trialSamples, trialNew, trialNew}
	expect.True(t, slices.Equal(got, want) && !r.DynamicSampling, "prompts, samples, tokens and tokens in all: %v, want %v", got, want)
	b := limited.Options.(*rollout.ReplayOptions)
	expect.True(t, b.PromptsPerStep == 1 && b.NumUpdateSteps == trialSamples && !b.CacheBuffer && buffer.CacheBuffer, "the replay buffer's options: %+v", b)
	labels := (&trial{}).limitLabels(rollout.LabelOptions{BufferSize: 2000, Samples: 8})
	expect.True(t, labels.BufferSize == trialSamples && labels.Samples == trialSamples, "a classifier's rollouts: %+v", labels)
	var none *trial
	same := asked
	if none.limit(&same); same.Rollout.MaxNew != asked.Rollout.MaxNew {
		t.Error("a run that is no trial is limited")
	}
}
