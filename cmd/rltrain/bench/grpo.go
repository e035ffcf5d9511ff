package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// grpoBench is the case grpo_step.
type grpoBench struct {
	shape, dtype                        string
	r, group, batch, prompt, new, iters int
	beta                                float64
}

type grpoResult struct {
	Case            string    `json:"case"`
	Shape           string    `json:"shape"`
	R               int       `json:"r"`
	Group           int       `json:"group"`
	Batch           int       `json:"batch"`
	Prompt          int       `json:"prompt"`
	New             int       `json:"new"`
	Beta            float64   `json:"beta"`
	Iters           int       `json:"iters"`
	Split           grpoSplit `json:"split_s"` // of the best step
	CompletionsPerS float64   `json:"completions_per_s"`
	Weights         float64   `json:"weights_mb"` // stored frozen weights, MiB
	Engine          float64   `json:"engine_mb"`  // anonymous memory of the sampler, MiB
	Held            float64   `json:"held_mb"`    // Engine plus the memory held after the steps, such as optimizer state
	benchFigures
}

// grpoSplit is the time of a step and its parts, in seconds.
type grpoSplit struct {
	Step        float64 `json:"step"`
	Generate    float64 `json:"generate"`
	LogProbs    float64 `json:"logps_nograd"` // reference, and old policy if --iters is above 1
	Update      float64 `json:"update"`
	Environment float64 `json:"environment"`
}

func grpoBenchCase() benchCase {
	var b grpoBench
	return benchCase{
		name:  "grpo_step",
		usage: "GRPO step: rollouts, rewards, advantages and updates; random Llama, LoRA on all linear layers",
		flags: []cli.Flag{
			&cli.StringFlag{Name: "shape", Value: "tiny", Usage: shapeNames, Destination: &b.shape},
			&cli.StringFlag{Name: "dtype", Value: "fp32", Usage: "dtype of the frozen weights: fp32 or bf16", Destination: &b.dtype},
			&cli.IntFlag{Name: "r", Value: 8, Usage: "LoRA rank", Destination: &b.r},
			&cli.IntFlag{Name: "group", Value: 8, Usage: "completions per prompt, at least 2", Destination: &b.group},
			&cli.IntFlag{Name: "batch", Value: 32, Usage: "completions per step, a multiple of --group", Destination: &b.batch},
			&cli.IntFlag{Name: "prompt", Value: 32, Usage: "tokens per prompt", Destination: &b.prompt},
			&cli.IntFlag{Name: "new", Value: 32, Usage: "tokens per completion", Destination: &b.new},
			&cli.Float64Flag{Name: "beta", Usage: "KL coefficient", Destination: &b.beta},
			&cli.IntFlag{Name: "iters", Value: 1, Usage: "updates per step", Destination: &b.iters},
		},
		run: func(ctx context.Context, common benchFlags) (benchTable, error) { return b.run(ctx, common.reps) },
	}
}

func (b grpoBench) check() error {
	shape, err := llamaShape(b.shape)
	if err != nil {
		return err
	}
	if err := checkBounds(bound{"r", b.r, 1, shape.Hidden}, bound{"group", b.group, 2, 1 << 12}, bound{"batch", b.batch, b.group, 1 << 14},
		bound{"prompt", b.prompt, 1, llamaLongest - 1}, bound{"new", b.new, 1, llamaLongest - b.prompt}, bound{"iters", b.iters, 1, 1 << 10}); err != nil {
		return err
	}
	if b.batch%b.group != 0 {
		return fmt.Errorf("--batch: %d is not a multiple of --group %d", b.batch, b.group)
	}
	if !(b.beta >= 0) {
		return errors.New("--beta: must be at least 0")
	}
	return nil
}

func (b grpoBench) run(ctx context.Context, reps int) (result grpoResult, err error) {
	if err := b.check(); err != nil {
		return result, err
	}
	dtype, err := weightDType(b.dtype)
	if err != nil {
		return result, err
	}
	p, err := b.policy()
	if err != nil {
		return result, err
	}
	defer p.Close()
	before, err := held()
	if err != nil {
		return result, err
	}
	sampler, err := p.NewSampler(b.batch)
	if err != nil {
		return result, err
	}
	defer sampler.Close()
	engine, err := held()
	if err != nil {
		return result, err
	}
	source, err := rollout.NewTokens(sampler, digitSums{tokens: b.prompt}, rollout.TokensConfig{
		Options: rollout.Options{
			PromptsPerStep: b.batch / b.group, SamplesPerPrompt: b.group, NumGenerators: b.batch / b.group, Sampling: rollout.Sampling{Temperature: 1},
		},
		Steps: math.MaxInt32, MaxNew: b.new, Seed: 3, Now: time.Now,
	})
	if err != nil {
		return result, err
	}
	trainer, err := train.New(p, source, &algo.GRPO{Clip: algo.Clip{Low: 0.2, High: 0.2}}, training(train.Config{
		Updates: train.Updates{Epochs: b.iters}, Regularisation: train.Regularisation{KLCoef: b.beta, KLType: string(rl.K3)},
		Samples: b.group, Longest: b.new, Seed: 3,
	}), run.Hooks{Now: time.Now})
	if err != nil {
		return result, err
	}
	defer trainer.Close()
	var best grpoSplit
	figures, err := measureStep(ctx, func() error {
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
	}, reps, b.dtype)
	if err != nil {
		return result, err
	}
	after, err := held()
	if err != nil {
		return result, err
	}
	layers, head := products(llamaShapes[b.shape])
	return grpoResult{
		Weights: float64(dtype.Size()) * (layers + head) / (1 << 20), Engine: engine - before, Held: after - before,
		Case: "grpo_step", Shape: b.shape, R: b.r, Group: b.group, Batch: b.batch, Prompt: b.prompt, New: b.new, Beta: b.beta, Iters: b.iters,
		Split: best, CompletionsPerS: float64(b.batch) / figures.Best, benchFigures: figures,
	}, nil
}

// policy returns a LoRA policy on a random Llama with a character tokenizer. It has no stop token, so that all steps have
// the same length.
func (b grpoBench) policy() (*policy.CausalLM, error) {
	dir, err := os.MkdirTemp("", "rltrain-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	stored := safetensors.F32
	if b.dtype == "bf16" {
		stored = safetensors.BF16
	}
	model := filepath.Join(dir, "model")
	if err := transformers.WriteLlama(model, llamaShapes[b.shape], stored, 1); err != nil {
		return nil, err
	}
	if err := forgetEnd(model); err != nil {
		return nil, err
	}
	return policy.NewCausalLM(policy.Config{
		Dir: model, DType: b.dtype, R: b.r, Alpha: 2 * float64(b.r), Seed: 1,
		Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
	})
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

func (r grpoResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, r %d, %s, %d threads, %s\n", r.Case, r.Shape, r.R, r.DType, r.Threads, r.CPU)
	fmt.Fprintf(t, "batch\t%d completions of %d prompts, %d + %d tokens\n", r.Batch, r.Batch/r.Group, r.Prompt, r.New)
	r.times(t, fmt.Sprintf("%.1f completions/s", r.CompletionsPerS))
	fmt.Fprintf(t, "weights\t%.0f MiB stored\t+%.0f MiB for the sampler\t+%.0f MiB after the steps\n", r.Weights, r.Engine, r.Held)
	fmt.Fprintf(t, "best step\t%.4f s generation\t%.4f s log-probs\t%.4f s update\t%.4f s environment\n", r.Split.Generate, r.Split.LogProbs, r.Split.Update, r.Split.Environment)
	return t.Flush()
}
