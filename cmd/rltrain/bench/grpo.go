package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/train"
)

// grpoBench is the case grpo_step.
type grpoBench struct {
	adaptedLlama
	Group  int     `json:"group" option:"group" default:"8" range:"[2,4096]" help:"completions per prompt"`
	Batch  int     `json:"batch" option:"batch" default:"32" range:"[2,16384]" help:"completions per step, a multiple of --group"`
	Prompt int     `json:"prompt" option:"prompt" default:"32" range:"[1,2047]" help:"tokens per prompt"`
	New    int     `json:"new" option:"new" default:"32" range:"[1,2047]" help:"tokens per completion"`
	Beta   float64 `json:"beta" option:"beta" range:"[0,)" help:"KL coefficient"`
	Iters  int     `json:"iters" option:"iters" default:"1" range:"[1,1024]" help:"updates per step"`
}

// grpoSplit is the time of a step and its parts, in seconds.
type grpoSplit struct {
	Step        float64 `json:"step"`
	Generate    float64 `json:"generate"`
	LogProbs    float64 `json:"logps_nograd"` // reference, and old policy if --iters is above 1
	Update      float64 `json:"update"`
	Environment float64 `json:"environment"`
}

func (b *grpoBench) run(ctx context.Context, reps int) (*result, error) {
	if b.Batch%b.Group != 0 {
		return nil, fmt.Errorf("--batch: %d is not a multiple of --group %d", b.Batch, b.Group)
	}
	if err := errors.Join(inRange("r", b.R, 1, b.shape().Hidden), inRange("new", b.New, 1, llamaLongest-b.Prompt)); err != nil {
		return nil, err
	}
	p, err := b.policy()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	before, err := held()
	if err != nil {
		return nil, err
	}
	sampler, err := p.NewSampler(b.Batch)
	if err != nil {
		return nil, err
	}
	defer sampler.Close()
	engine, err := held()
	if err != nil {
		return nil, err
	}
	source, err := rollout.NewTokens(sampler, digitSums{tokens: b.Prompt}, rollout.TokensConfig{
		Options: rollout.Options{PromptsPerStep: b.Batch / b.Group, SamplesPerPrompt: b.Group, NumGenerators: b.Batch / b.Group, Sampling: rollout.Sampling{Temperature: 1}},
		Steps:   math.MaxInt32, MaxNew: b.New, Seed: 3, Now: time.Now,
	})
	if err != nil {
		return nil, err
	}
	trainer, err := newTrainer(p, source, &algo.GRPO{Clip: algo.Clip{Low: 0.2, High: 0.2}}, train.Config{
		Updates: train.Updates{Epochs: b.Iters}, Regularisation: train.Regularisation{KLCoef: b.Beta, KLType: string(rl.K3)},
		Samples: b.Group, Longest: b.New, Seed: 3,
	})
	if err != nil {
		return nil, err
	}
	defer trainer.Close()
	var best grpoSplit
	f, err := measureStep(ctx, func() error {
		began := time.Now()
		m, err := trainer.Step(ctx)
		split := grpoSplit{
			Step: time.Since(began).Seconds(), Generate: m.Get("time/generation"), LogProbs: m.Get("time/logprobs"),
			Update: m.Get("time/update"), Environment: m.Get("time/environment"),
		}
		if best.Step == 0 || split.Step < best.Step {
			best = split
		}
		return err
	}, reps, b.DType)
	if err != nil {
		return nil, err
	}
	after, err := held()
	if err != nil {
		return nil, err
	}
	rate := float64(b.Batch) / f.Best
	return &result{
		figures: f,
		more: map[string]any{
			"split_s":           best, // of the best step
			"completions_per_s": rate,
			"weights_mb":        b.weights(),     // stored frozen weights, MiB
			"engine_mb":         engine - before, // anonymous memory of the sampler, MiB
			"held_mb":           after - before,  // that and the memory held after the steps, such as optimizer state
		},
		about:  fmt.Sprintf("%s, r %d", b.Shape, b.R),
		before: []string{fmt.Sprintf("batch\t%d completions of %d prompts, %d + %d tokens", b.Batch, b.Batch/b.Group, b.Prompt, b.New)},
		speed:  fmt.Sprintf("%.1f completions/s", rate),
		after: []string{
			fmt.Sprintf("weights\t%.0f MiB stored\t+%.0f MiB for the sampler\t+%.0f MiB after the steps", b.weights(), engine-before, after-before),
			fmt.Sprintf("best step\t%.4f s generation\t%.4f s log-probs\t%.4f s update\t%.4f s environment", best.Generate, best.LogProbs, best.Update, best.Environment),
		},
	}, nil
}

// policy returns a LoRA policy on a random Llama with a character tokenizer. It has no stop token, so that all steps have
// the same length.
func (b *grpoBench) policy() (*policy.CausalLM, error) {
	dir, err := os.MkdirTemp("", "rltrain-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c := b.config()
	if c.Dir, err = b.write(dir); err == nil {
		err = forgetEnd(c.Dir)
	}
	if err != nil {
		return nil, err
	}
	c.BaseModel, c.DType = "", b.DType
	return policy.NewCausalLM(c)
}

// forgetEnd removes the stop token from a model folder.
func forgetEnd(dir string) error {
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer_config.json"} {
		path := filepath.Join(dir, name)
		var fields map[string]json.RawMessage
		switch err := files.LoadJSON(path, &fields); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		}
		delete(fields, "eos_token")
		delete(fields, "eos_token_id")
		if err := files.SaveJSON(path, fields); err != nil {
			return err
		}
	}
	return nil
}

// digitSums shows random characters and rewards the sum of the digits in the completion.
type digitSums struct{ tokens int }

func (digitSums) Len(envs.Part) int { return 0 }

func (d digitSums) Episode(_ envs.Part, index int) (envs.Env, error) {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyz"
	rng := rand.New(rand.NewPCG(3, uint64(index)))
	text := make([]byte, d.tokens)
	for i := range text {
		text[i] = letters[rng.IntN(len(letters))]
	}
	return digitSum(text), nil
}

type digitSum string

func (d digitSum) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: string(d)}, nil
}

func (digitSum) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	sum := 0
	for _, c := range a.Text {
		if c >= '0' && c <= '9' {
			sum += int(c - '0')
		}
	}
	return envs.Step{Keep: len(a.Text), Reward: float64(sum), Done: true}, nil
}
