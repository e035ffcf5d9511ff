package train_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/torch"
)

// digitsOnly rewards a completion with its fraction of digits.
type digitsOnly struct{}

func (digitsOnly) Len(envs.Part) int { return 0 } // there are infinitely many episodes

func (digitsOnly) Episode(part envs.Part, index int) (envs.Env, error) { return digitsOnly{}, nil }

func (digitsOnly) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: "number: "}, nil
}

func (digitsOnly) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	digits := 0
	for _, c := range a.Text {
		if c >= '0' && c <= '9' {
			digits++
		}
	}
	return envs.Step{Keep: len(a.Text), Reward: float64(digits) / float64(max(1, len(a.Text))), Done: true}, nil
}

// Read this first: RL of a language model on one page, without the trainer. Sample, compare each reward with those of
// the same prompt, and make the better samples more likely.
func Example_loop() {
	const (
		steps, prompts, samples = 20, 4, 8
		temperature             = 1.0
		rate                    = 0.02
	)
	dir := get(os.MkdirTemp("", "loop"))
	defer os.RemoveAll(dir)
	model := filepath.Join(dir, "tiny")
	check(policy.TinyModel(model, 2, 32, 1)) // or any folder of a causal language model
	p := get(policy.NewCausalLM(policy.Config{Dir: model, Full: true}))
	defer p.Close()
	sampler := get(p.NewSampler(prompts * samples))
	defer sampler.Close()
	optimizer := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: p.Params()})
	defer optimizer.Close()

	var first, last float64
	for step := range steps {
		// Play the episodes.
		played := get(rollout.Play(context.Background(), sampler, digitsOnly{}, envs.Train, []int{0, 1, 2, 3}, rollout.Config{
			Samples: samples, MaxNew: 4, Sampling: torch.Sampling{Temperature: temperature}, Seed: 1, Step: uint64(step),
		}))
		var rewards [][]float64
		var all []*rl.Sample
		for _, g := range played.Groups {
			rewards = append(rewards, g.Rewards())
			for _, trajectory := range g {
				all = append(all, trajectory.Sample(temperature))
			}
		}

		// Compute how much better each sample is than the others of its prompt.
		var advantages []float64
		for _, group := range (rl.Advantages{Baseline: rl.BaselineLeaveOneOut, Scale: rl.ScaleNone}).Of(rewards, rewards, nil) {
			advantages = append(advantages, group...)
		}

		// −Σ A·log π over all tokens, divided by their number.
		batch := rl.NewBatch(all)
		tokens := int64(len(batch.Actions))
		check(torch.Do(torch.Train, func(s *torch.Scope) error {
			logProbs := p.Forward(s, batch, policy.Pass{Temperature: temperature}).LogProbs
			advantage := s.Floats(batch.Spread(advantages), tokens)
			s.Backward(s.Scale(s.Sum(s.Mul(advantage, logProbs)), -1/float64(tokens)))
			return nil
		}))
		get(optimizer.Step([]float64{rate}, 1)) // clip the gradient norm at 1
		p.Changed()                             // the sampler now uses the new weights

		last = rl.StatsOf(rewards).Mean
		if step == 0 {
			first = last
		}
	}
	fmt.Printf("digits at first: below 20 %%: %v; after %d steps: over 90 %%: %v\n", first < 0.2, steps, last > 0.9)
	// Output:
	// digits at first: below 20 %: true; after 20 steps: over 90 %: true
}
