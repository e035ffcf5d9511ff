package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// dpoBench is the case dpo_step.
type dpoBench struct {
	randomLlama
	pairs, prompt, seq int
	precompute         bool
}

type dpoResult struct {
	Case       string  `json:"case"`
	Shape      string  `json:"shape"`
	R          int     `json:"r"`
	Pairs      int     `json:"pairs"`
	Prompt     int     `json:"prompt"`
	Seq        int     `json:"seq"`
	Precompute bool    `json:"precompute"`
	Tokens     int     `json:"tokens_in_step"` // counts the prompt for each side
	TokensPerS float64 `json:"tokens_per_s"`
	PairsPerS  float64 `json:"pairs_per_s"`
	benchFigures
}

func dpoBenchCase() benchCase {
	var b dpoBench
	return benchCase{
		name:  "dpo_step",
		usage: "DPO step: reference log-probs, loss and update; random Llama, LoRA on all linear layers",
		flags: append(b.flags(),
			&cli.IntFlag{Name: "pairs", Value: 4, Usage: "pairs per step", Destination: &b.pairs},
			&cli.IntFlag{Name: "prompt", Value: 64, Usage: "tokens per prompt", Destination: &b.prompt},
			&cli.IntFlag{Name: "seq", Value: 256, Usage: "tokens of prompt and response", Destination: &b.seq},
			&cli.BoolFlag{Name: "precompute", Usage: "precompute reference log-probs, outside of the step", Destination: &b.precompute},
		),
		run: func(ctx context.Context, common benchFlags) (benchTable, error) { return b.run(ctx, common.reps) },
	}
}

// dpoPairs is the number of distinct pairs, in multiples of --pairs.
const dpoPairs = 8

func (b dpoBench) units(vocab int) (units [][]*rl.Sample) {
	rng := rand.New(rand.NewPCG(7, 0))
	draw := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(firstWord + rng.IntN(vocab-firstWord))
		}
		return ids
	}
	for u := range dpoPairs * b.pairs {
		prompt := draw(b.prompt)
		var unit []*rl.Sample
		for side := range 2 {
			answer := draw(b.seq - b.prompt)
			x := &rl.Sample{Tokens: append(append([]int32(nil), prompt...), answer...), Actions: answer, Prompt: u, Index: side}
			for i := range answer {
				x.Rows = append(x.Rows, b.prompt-1+i)
			}
			unit = append(unit, x)
		}
		units = append(units, unit)
	}
	return units
}

func (b dpoBench) run(ctx context.Context, reps int) (result dpoResult, err error) {
	if err := checkBounds(bound{"pairs", b.pairs, 1, 1 << 12}, bound{"seq", b.seq, 2, llamaLongest}, bound{"prompt", b.prompt, 1, b.seq - 1}); err != nil {
		return result, err
	}
	p, err := b.policy()
	if err != nil {
		return result, err
	}
	defer p.Close()
	units := b.units(p.VocabSize())
	c := training(train.Config{Steps: math.MaxInt32, Seed: 3})
	if b.precompute {
		for _, unit := range units {
			c.Precompute = append(c.Precompute, unit...)
		}
	}
	trainer, err := train.New(p, epochs.NewPreferences(units, b.pairs, 0, 3), &algo.DPO{Losses: []string{"sigmoid"}, Beta: 0.1}, c, run.Hooks{})
	if err != nil {
		return result, err
	}
	defer trainer.Close()
	figures, err := measureStep(ctx, func() error { _, err := trainer.Step(ctx); return err }, reps, b.dtype)
	if err != nil {
		return result, err
	}
	tokens := 2 * b.pairs * b.seq
	return dpoResult{
		Case: "dpo_step", Shape: b.shape, R: b.r, Pairs: b.pairs, Prompt: b.prompt, Seq: b.seq, Precompute: b.precompute, Tokens: tokens,
		TokensPerS: float64(tokens) / figures.Best, PairsPerS: float64(b.pairs) / figures.Best, benchFigures: figures,
	}, nil
}

func (r dpoResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, r %d, %s, %d threads, %s\n", r.Case, r.Shape, r.R, r.DType, r.Threads, r.CPU)
	fmt.Fprintf(t, "batch\t%d pairs, %d tokens with a prompt of %d, precomputed reference: %t\n", r.Pairs, r.Seq, r.Prompt, r.Precompute)
	r.times(t, fmt.Sprintf("%.1f pairs/s", r.PairsPerS))
	return t.Flush()
}
