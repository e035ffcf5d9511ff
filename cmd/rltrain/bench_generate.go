package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"rltrain/torch"
)

// generateBench is what `rltrain bench generate` repeats.
type generateBench struct {
	shape, dtype       string
	batch, prompt, new int
	sample             bool
}

// generateResult is one line of JSON: the figure names that other benchmarks of generation use.
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
	benchFigures
}

// The shapes of decoders that generation is measured on, with a tied head.
var generateShapes = map[string]torch.DecoderConfig{
	"smol135": llamaShape(49152, 576, 30, 9, 3, 1536, 100000), // of SmolLM2-135M
	"tiny":    llamaShape(64, 128, 4, 4, 4, 512, 10000),
}

func llamaShape(vocab, hidden, layers, heads, kvHeads, intermediate int, theta float64) torch.DecoderConfig {
	d := hidden / heads
	frequencies := make([]float64, d/2)
	for i := range frequencies {
		frequencies[i] = math.Pow(theta, -2*float64(i)/float64(d))
	}
	return torch.DecoderConfig{
		VocabSize: vocab, HiddenSize: hidden, Layers: layers, Heads: heads, KVHeads: kvHeads, HeadDim: d,
		IntermediateSize: intermediate, MaxPositions: 2048, RotaryDim: d, Norm: torch.NormRMS, Activation: torch.SiLU,
		QKV: torch.QKVSplit, Residual: torch.ResidualSequential, Gated: true, NormEps: 1e-5,
		AttentionScale: 1 / math.Sqrt(float64(d)), EmbeddingScale: 1,
		RopeOf: make([]int, layers), Ropes: []torch.Rope{{InvFreq: frequencies, Factor: 1}},
	}
}

func generateBenchCase() benchCase {
	var b generateBench
	return benchCase{
		name:  "generate",
		usage: "completions of prompts by a causal language model with random weights",
		flags: []cli.Flag{
			&cli.StringFlag{Name: "shape", Value: "tiny", Usage: "tiny or smol135", Destination: &b.shape},
			&cli.StringFlag{Name: "dtype", Value: "fp32", Usage: "of the weights: fp32 or bf16", Destination: &b.dtype},
			&cli.IntFlag{Name: "batch", Value: 8, Usage: "prompts", Destination: &b.batch},
			&cli.IntFlag{Name: "prompt", Value: 64, Usage: "tokens of each prompt", Destination: &b.prompt},
			&cli.IntFlag{Name: "new", Value: 128, Usage: "tokens to generate for each, at least 2", Destination: &b.new},
			&cli.BoolFlag{Name: "sample", Usage: "draw at temperature 1 instead of taking the likeliest token", Destination: &b.sample},
		},
		run: func(ctx context.Context, common benchFlags) (benchTable, error) { return b.run(ctx, common.reps) },
	}
}

func (b generateBench) check() error {
	shape, ok := generateShapes[b.shape]
	if !ok {
		return fmt.Errorf("--shape %.40q is not tiny or smol135", b.shape)
	}
	if b.dtype != "fp32" && b.dtype != "bf16" {
		return fmt.Errorf("--dtype %.40q is not fp32 or bf16", b.dtype)
	}
	return checkBounds(bound{"batch", b.batch, 1, 1 << 12}, bound{"prompt", b.prompt, 1, shape.MaxPositions - 2}, bound{"new", b.new, 2, shape.MaxPositions - b.prompt})
}

// model makes a decoder with random weights.
func (b generateBench) model(rng *rand.Rand) (m *torch.Model, err error) {
	c := generateShapes[b.shape]
	weights := map[string]*torch.Var{}
	defer func() {
		for _, v := range weights {
			v.Close()
		}
	}()
	add := func(name string, centre, spread float64, dims ...int64) {
		if err != nil {
			return
		}
		n := int64(1)
		for _, d := range dims {
			n *= d
		}
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(centre + spread*(rng.Float64()-0.5))
		}
		var v *torch.Var
		if v, err = torch.Constant(data, dims...); err != nil {
			return
		}
		if b.dtype == "bf16" && len(dims) == 2 {
			wide := v
			v, err = wide.To(torch.BF16)
			wide.Close()
			if err != nil {
				return
			}
		}
		weights[name+".weight"] = v
	}
	const spread = 0.07 // a standard deviation of 0.02
	h, inner := int64(c.HiddenSize), int64(c.IntermediateSize)
	q, kv := int64(c.Heads*c.HeadDim), int64(c.KVHeads*c.HeadDim)
	add("embed", 0, spread, int64(c.VocabSize), h)
	for n := range c.Layers {
		at := fmt.Sprintf("layers.%d.", n)
		add(at+"attn_norm", 1, 0, h)
		add(at+"q", 0, spread, q, h)
		add(at+"k", 0, spread, kv, h)
		add(at+"v", 0, spread, kv, h)
		add(at+"o", 0, spread, h, q)
		add(at+"mlp_norm", 1, 0, h)
		add(at+"gate", 0, spread, inner, h)
		add(at+"up", 0, spread, inner, h)
		add(at+"down", 0, spread, h, inner)
	}
	add("norm", 1, 0, h)
	if err != nil {
		return nil, err
	}
	return torch.NewDecoder(c, weights)
}

func (b generateBench) run(ctx context.Context, reps int) (result generateResult, err error) {
	if err := b.check(); err != nil {
		return result, err
	}
	rng := rand.New(rand.NewPCG(6, 0))
	m, err := b.model(rng)
	if err != nil {
		return result, err
	}
	defer m.Close()
	engine, err := torch.NewEngine(m, torch.EngineConfig{Slots: b.batch})
	if err != nil {
		return result, err
	}
	defer engine.Close()
	prompts := make([][]int32, b.batch)
	for i := range prompts {
		for range b.prompt {
			prompts[i] = append(prompts[i], int32(3+rng.IntN(generateShapes[b.shape].VocabSize-3)))
		}
	}
	const chunk = 512 // tokens of a step while there are prompts to read
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
			if _, err := engine.Step(max(chunk, b.batch)); err != nil {
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
	return generateResult{
		Case: "generate", Shape: b.shape, Batch: b.batch, Prompt: b.prompt, New: b.new, Mode: mode,
		TokensPerS: float64(b.batch*b.new) / full.Best, FirstToken: first.best,
		DecodeTokensPerS: float64(b.batch*(b.new-1)) / decode, DecodeStep: 1e3 * decode / float64(b.new-1),
		benchFigures: full,
	}, nil
}

func (r generateResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, %s, %s, %d threads, %s\n", r.Case, r.Shape, r.DType, r.Mode, r.Threads, r.CPU)
	fmt.Fprintf(t, "batch\t%d prompts of %d tokens, %d new tokens each\n", r.Batch, r.Prompt, r.New)
	fmt.Fprintf(t, "first token\t%.4f s\tthen %.3f ms a step, %.1f tokens/s\n", r.FirstToken, r.DecodeStep, r.DecodeTokensPerS)
	r.times(t, fmt.Sprintf("%.1f tokens/s", r.TokensPerS))
	return t.Flush()
}
