package bench

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/train"
)

// loraBench is the case lora_step.
type loraBench struct {
	adaptedLlama
	quantization
	Batch      int    `json:"batch" option:"batch" default:"8" range:"[1,65536]" help:"sequences per batch"`
	Seq        int    `json:"seq" option:"seq" default:"256" range:"[2,2048]" help:"length of the longest sequence in tokens"`
	Layout     string `json:"layout" option:"layout" default:"full" allowed:"full,mixed" help:"full: all sequences have length --seq; mixed: lengths spread evenly from 32 to --seq, without padding"`
	Checkpoint bool   `json:"ckpt" option:"ckpt" help:"gradient checkpointing"`
}

const mixedShortest = 32 // tokens of the shortest sequence of --layout mixed

// sequences samples token ids; all but the first are labels.
func (b *loraBench) sequences(vocab int) (sequences []policy.Sequence, tokens int) {
	rng, shortest := rand.New(rand.NewPCG(7, 0)), 0
	if b.Layout == "mixed" {
		shortest = mixedShortest
	}
	for _, length := range spread(rng, b.Batch, shortest, b.Seq) {
		q := policy.Sequence{IDs: randomTokens(rng, length, firstWord, vocab), Labels: make([]bool, length)}
		for i := range q.Labels {
			q.Labels[i] = i > 0
		}
		sequences = append(sequences, q)
		tokens += length
	}
	return sequences, tokens
}

func (b *loraBench) run(ctx context.Context, reps int) (*result, error) {
	if b.Layout == "mixed" && b.Seq < mixedShortest {
		return nil, fmt.Errorf("--seq %d is below %d, the shortest length of --layout mixed", b.Seq, mixedShortest)
	}
	dtype, quant, kind := b.types(b.DType)
	p, err := b.policy(dtype, quant)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	sequences, tokens := b.sequences(p.VocabSize())
	source, err := epochs.New(policy.Samples(sequences), b.Batch, 0, 0)
	if err != nil {
		return nil, err
	}
	f, err := measureTraining(ctx, p, source, &algo.SFT{}, train.Config{Checkpointing: train.Checkpointing{Checkpoint: b.Checkpoint}}, reps, kind)
	if err != nil {
		return nil, err
	}
	_, trainable := p.Parameters()
	flops, rate := stepFLOPs(b.shape(), trainable, sequences), float64(tokens)/f.Best
	return &result{
		figures: f,
		more: map[string]any{
			"real_tokens": tokens, "row_tokens": tokens, // equal: there is no padding
			"tokens_per_s": rate, "step_flops": flops, "tflop_s": flops / f.Best / 1e12, // minimum number of operations
			"trainable": trainable, "rss_before_mb": f.PeakRSS - f.StepExtra,
		},
		about:  fmt.Sprintf("%s, r %d", b.Shape, b.R),
		before: []string{fmt.Sprintf("batch\t%d sequences, %s, %d tokens", b.Batch, b.Layout, tokens)},
		speed:  fmt.Sprintf("%.1f tokens/s, %.2f TFLOP/s", rate, flops/f.Best/1e12),
	}, nil
}
