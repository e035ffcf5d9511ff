package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// generateBench is the case generate.
type generateBench struct {
	randomLlama
	Quantize string `json:"quantize,omitempty" option:"quantize" allowed:"nf4,int8,q8_0,q4_0,q4_1" help:"quantise a bf16 model: its linear layers to nf4 or int8; q8_0, q4_0, q4_1: also its output layer, to q8_0"`
	Batch    int    `json:"batch" option:"batch" default:"8" range:"[1,4096]" help:"prompts per batch"`
	Prompt   int    `json:"prompt" option:"prompt" default:"64" range:"[1,2046]" help:"tokens per prompt"`
	New      int    `json:"new" option:"new" default:"128" range:"[2,2047]" help:"tokens to generate per prompt, at least 2"`
	Sample   bool   `json:"-" option:"sample" help:"sample at temperature 1 instead of greedy decoding"`
}

func (b *generateBench) run(ctx context.Context, reps int) (*result, error) {
	if err := inRange("new", b.New, 2, llamaLongest-b.Prompt); err != nil {
		return nil, err
	}
	shape, dtype := b.shape(), dtypes[b.DType]
	perWeight := func(quant torch.QuantType) float64 {
		return float64(quant.RowBytes(int64(shape.Hidden))) / float64(shape.Hidden)
	}
	layer, kind := float64(dtype.Size()), b.DType
	head := layer
	draw := func() (*transformers.Causal, error) { return transformers.RandomLlama(shape, dtype, 1) }
	if quant := torch.QuantType(b.Quantize); quant != "" {
		dtype, kind, layer, head = torch.BF16, b.Quantize, perWeight(quant), float64(torch.BF16.Size())
		if strings.HasPrefix(b.Quantize, "q") {
			head = perWeight(torch.Q8_0) // as a GGUF file has it
		}
		draw = func() (*transformers.Causal, error) { return transformers.RandomQuantized(shape, quant, 1) }
	}
	m, err := draw()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	engine, err := torch.NewEngine(m.Model, torch.EngineConfig{Slots: b.Batch})
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	rng := rand.New(rand.NewPCG(6, 0))
	prompts := make([][]int32, b.Batch)
	for i := range prompts {
		prompts[i] = randomTokens(rng, b.Prompt, firstWord, shape.Vocab)
	}
	mode, sampling := "greedy", torch.Sampling{}
	if b.Sample {
		mode, sampling.Temperature = "sample", 1
	}
	generate := func(tokens int) error {
		for _, prompt := range prompts {
			if _, err := engine.Submit(torch.Request{Prompt: prompt, Samples: 1, MaxNew: tokens, Seed: 1, Sampling: sampling}); err != nil {
				return err
			}
		}
		for engine.Unfinished() > 0 {
			if _, err := engine.Step(max(torch.StepTokens(), b.Batch)); err != nil {
				return err
			}
		}
		return nil
	}
	full, err := measureStep(ctx, func() error { return generate(b.New) }, reps, kind)
	if err != nil {
		return nil, err
	}
	first, err := bestOf(ctx, func() error { return generate(1) }, reps)
	if err != nil {
		return nil, err
	}
	decode := full.Best - first.Best
	if decode <= 0 {
		return nil, fmt.Errorf("%d tokens took %.4f s and the first of them %.4f s: other work disturbs the measurement; stop it and try again", b.New, full.Best, first.Best)
	}
	step, bytes := decode/float64(b.New-1), stepBytes(shape, layer, head, dtype, b.Batch, b.Prompt+b.New/2)
	decoding, rate := float64(b.Batch*(b.New-1))/decode, float64(b.Batch*b.New)/full.Best
	return &result{
		figures: full,
		more: map[string]any{
			"mode": mode, "tokens_per_s": rate, "first_token_s": first.Best, "decode_tokens_per_s": decoding, "decode_step_ms": 1e3 * step,
			"step_bytes": bytes, // of weights and KV cache that a decode step reads, halfway through
			"gb_s":       bytes / step / 1e9,
		},
		about: b.Shape + ", " + mode,
		before: []string{
			fmt.Sprintf("batch\t%d prompts of %d tokens, %d new tokens each", b.Batch, b.Prompt, b.New),
			fmt.Sprintf("first token\t%.4f s\tthen %.3f ms/step, %.1f tokens/s, %.1f GB/s", first.Best, 1e3*step, decoding, bytes/step/1e9),
		},
		speed: fmt.Sprintf("%.1f tokens/s", rate),
	}, nil
}
