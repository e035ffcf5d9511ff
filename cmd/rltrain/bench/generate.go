package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// generateBench is the case generate.
type generateBench struct {
	randomLlama
	quantization
	Batch  int  `json:"batch" option:"batch" default:"8" range:"[1,4096]" help:"prompts per batch"`
	Prompt int  `json:"prompt" option:"prompt" default:"64" range:"[1,2046]" help:"tokens per prompt"`
	New    int  `json:"new" option:"new" default:"128" range:"[2,2047]" help:"tokens to generate per prompt, at least 2"`
	Sample bool `json:"-" option:"sample" help:"sample at temperature 1 instead of greedy decoding"`
}

func (b *generateBench) run(ctx context.Context, reps int) (*result, error) {
	if err := inRange("new", b.New, 2, llamaLongest-b.Prompt); err != nil {
		return nil, err
	}
	shape := b.shape()
	dtype, quant, kind := b.types(b.DType)
	perWeight := func(quant torch.QuantType) float64 {
		return float64(quant.RowBytes(int64(shape.Hidden))) / float64(shape.Hidden)
	}
	layer, head := float64(dtype.Size()), float64(dtype.Size())
	if quant != "" {
		layer = perWeight(quant)
	}
	if strings.HasPrefix(b.Quantize, "q") {
		head = perWeight(torch.Q8_0) // as a GGUF file has it
	}
	m, err := transformers.RandomLlama(shape, dtype, quant, 1)
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
	step := math.Inf(1)
	generate := func(tokens int) error {
		for _, prompt := range prompts {
			if _, err := engine.Submit(torch.Request{Prompt: prompt, Samples: 1, MaxNew: tokens, Seed: 1, Sampling: sampling}); err != nil {
				return err
			}
		}
		seconds, err := decodeStep(engine, b.Batch)
		if seconds > 0 {
			step = min(step, seconds)
		}
		return err
	}
	full, err := measureStep(ctx, func() error { return generate(b.New) }, reps, kind)
	if err != nil {
		return nil, err
	}
	first, err := bestOf(ctx, func() error { return generate(1) }, reps)
	if err != nil {
		return nil, err
	}
	if math.IsInf(step, 1) {
		return nil, fmt.Errorf("--new %d: the first prompt ends before the last begins, so no step generates for all %d; raise it", b.New, b.Batch)
	}
	bytes := stepBytes(shape, layer, head, dtype, b.Batch, b.Prompt+b.New/2)
	decoding, rate := float64(b.Batch)/step, float64(b.Batch*b.New)/full.Best
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

// decodeStep runs the engine until it has finished its n requests. It returns the mean seconds of a step in which all of them
// generate, or 0 if there is none.
func decodeStep(engine *torch.Engine, n int) (float64, error) {
	var began, ended time.Time
	started, steps, done := map[int64]bool{}, 0, false
	for engine.Unfinished() > 0 {
		events, err := engine.Step(max(torch.StepTokens(), n))
		if err != nil {
			return 0, err
		}
		now := time.Now()
		if len(started) == n && !done {
			steps, ended = steps+1, now
		}
		for _, event := range events {
			started[event.Request] = true
			done = done || event.Done
		}
		if len(started) == n && began.IsZero() {
			began = now
		}
	}
	if steps == 0 {
		return 0, nil
	}
	return ended.Sub(began).Seconds() / float64(steps), nil
}
