package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// generateBench is the case generate.
type generateBench struct {
	shape, dtype       string
	batch, prompt, new int
	sample             bool
}

// generateResult is the result of generateBench.
type generateResult struct {
	Case             string  `json:"case"`
	Shape            string  `json:"shape"`
	Batch            int     `json:"batch"`
	Prompt           int     `json:"prompt"`
	New              int     `json:"new"`
	Mode             string  `json:"mode"`
	TokensPerS       float64 `json:"tokens_per_s"`
	FirstToken       float64 `json:"first_token_s"`
	DecodeTokensPerS float64 `json:"decode_tokens_per_s"`
	DecodeStep       float64 `json:"decode_step_ms"`
	StepBytes        float64 `json:"step_bytes"` // bytes of weights and KV cache read per decode step, halfway through
	GBPerS           float64 `json:"gb_s"`       // StepBytes per DecodeStep, 1e9 bytes per second
	benchFigures
}

func generateBenchCase() benchCase {
	var b generateBench
	return benchCase{
		name:  "generate",
		usage: "generation with a random language model",
		flags: []cli.Flag{
			&cli.StringFlag{Name: "shape", Value: "tiny", Usage: shapeNames, Destination: &b.shape},
			&cli.StringFlag{Name: "dtype", Value: "fp32", Usage: "dtype of the weights: fp32 or bf16", Destination: &b.dtype},
			&cli.IntFlag{Name: "batch", Value: 8, Usage: "prompts per batch", Destination: &b.batch},
			&cli.IntFlag{Name: "prompt", Value: 64, Usage: "tokens per prompt", Destination: &b.prompt},
			&cli.IntFlag{Name: "new", Value: 128, Usage: "tokens to generate per prompt, at least 2", Destination: &b.new},
			&cli.BoolFlag{Name: "sample", Usage: "sample at temperature 1 instead of greedy decoding", Destination: &b.sample},
		},
		run: func(ctx context.Context, common benchFlags) (benchTable, error) { return b.run(ctx, common.reps) },
	}
}

func (b generateBench) run(ctx context.Context, reps int) (result generateResult, err error) {
	shape, err := llamaShape(b.shape)
	if err != nil {
		return result, err
	}
	dtype, err := weightDType(b.dtype)
	if err != nil {
		return result, err
	}
	if err := checkBounds(bound{"batch", b.batch, 1, 1 << 12}, bound{"prompt", b.prompt, 1, llamaLongest - 2}, bound{"new", b.new, 2, llamaLongest - b.prompt}); err != nil {
		return result, err
	}
	m, err := transformers.RandomLlama(shape, dtype, 1)
	if err != nil {
		return result, err
	}
	defer m.Close()
	engine, err := torch.NewEngine(m.Model, torch.EngineConfig{Slots: b.batch})
	if err != nil {
		return result, err
	}
	defer engine.Close()
	rng := rand.New(rand.NewPCG(6, 0))
	prompts := make([][]int32, b.batch)
	for i := range prompts {
		for range b.prompt {
			prompts[i] = append(prompts[i], int32(firstWord+rng.IntN(shape.Vocab-firstWord)))
		}
	}
	generate := func(tokens int) error {
		for _, prompt := range prompts {
			r := torch.Request{Prompt: prompt, Samples: 1, MaxNew: tokens, Seed: 1}
			if b.sample {
				r.Sampling.Temperature = 1
			}
			if _, err := engine.Submit(r); err != nil {
				return err
			}
		}
		for engine.Unfinished() > 0 {
			if _, err := engine.Step(max(torch.StepTokens(), b.batch)); err != nil {
				return err
			}
		}
		return nil
	}
	full, err := measureStep(ctx, func() error { return generate(b.new) }, reps, b.dtype)
	if err != nil {
		return result, err
	}
	first, err := bestOf(ctx, func() error { return generate(1) }, reps)
	if err != nil {
		return result, err
	}
	mode := "greedy"
	if b.sample {
		mode = "sample"
	}
	decode := full.Best - first.best
	step, bytes := decode/float64(b.new-1), stepBytes(shape, dtype, b.batch, b.prompt+b.new/2)
	return generateResult{
		Case: "generate", Shape: b.shape, Batch: b.batch, Prompt: b.prompt, New: b.new, Mode: mode,
		TokensPerS: float64(b.batch*b.new) / full.Best, FirstToken: first.best,
		DecodeTokensPerS: float64(b.batch*(b.new-1)) / decode, DecodeStep: 1e3 * step,
		StepBytes: bytes, GBPerS: bytes / step / 1e9,
		benchFigures: full,
	}, nil
}

func (r generateResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, %s, %s, %d threads, %s\n", r.Case, r.Shape, r.DType, r.Mode, r.Threads, r.CPU)
	fmt.Fprintf(t, "batch\t%d prompts of %d tokens, %d new tokens each\n", r.Batch, r.Prompt, r.New)
	fmt.Fprintf(t, "first token\t%.4f s\tthen %.3f ms/step, %.1f tokens/s, %.1f GB/s\n", r.FirstToken, r.DecodeStep, r.DecodeTokensPerS, r.GBPerS)
	r.times(t, fmt.Sprintf("%.1f tokens/s", r.TokensPerS))
	return t.Flush()
}
