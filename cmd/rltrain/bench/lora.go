package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// loraBench is the case lora_step.
type loraBench struct {
	randomLlama
	layout     string
	batch, seq int
	checkpoint bool
}

type loraResult struct {
	Case       string  `json:"case"`
	Shape      string  `json:"shape"`
	R          int     `json:"r"`
	Batch      int     `json:"batch"`
	Seq        int     `json:"seq"`
	Layout     string  `json:"layout"`
	Checkpoint bool    `json:"ckpt"`
	RealTokens int     `json:"real_tokens"`
	RowTokens  int     `json:"row_tokens"` // equals real_tokens: there is no padding
	TokensPerS float64 `json:"tokens_per_s"`
	StepFLOPs  float64 `json:"step_flops"` // minimum number of operations per step
	TFLOPPerS  float64 `json:"tflop_s"`
	Trainable  int64   `json:"trainable"`
	RSSBefore  float64 `json:"rss_before_mb"` // MiB
	benchFigures
}

// randomLlama is a random Llama with LoRA on all linear layers.
type randomLlama struct {
	shape, dtype string
	r            int
}

func (l *randomLlama) flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "shape", Value: "tiny", Usage: shapeNames, Destination: &l.shape},
		&cli.StringFlag{Name: "dtype", Value: "fp32", Usage: "dtype of the frozen weights: fp32 or bf16", Destination: &l.dtype},
		&cli.IntFlag{Name: "r", Value: 8, Usage: "LoRA rank", Destination: &l.r},
	}
}

func (l *randomLlama) policy() (*policy.CausalLM, error) {
	shape, err := llamaShape(l.shape)
	if err != nil {
		return nil, err
	}
	if err := checkBounds(bound{"r", l.r, 1, shape.Hidden}); err != nil {
		return nil, err
	}
	dtype, err := weightDType(l.dtype)
	if err != nil {
		return nil, err
	}
	return policy.RandomCausalLM(shape, dtype, policy.Config{
		BaseModel: "random", R: l.r, Alpha: 2 * float64(l.r), Seed: 1,
		Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
	})
}

const mixedShortest = 32 // tokens of the shortest sequence of --layout mixed

func loraBenchCase() benchCase {
	var b loraBench
	return benchCase{
		name:  "lora_step",
		usage: "SFT step of a language model: random Llama, LoRA on all linear layers",
		flags: append(b.flags(),
			&cli.IntFlag{Name: "batch", Value: 8, Usage: "sequences per batch", Destination: &b.batch},
			&cli.IntFlag{Name: "seq", Value: 256, Usage: "length of the longest sequence in tokens, at most 2048", Destination: &b.seq},
			&cli.StringFlag{Name: "layout", Value: "full", Usage: "full: all sequences have length --seq; mixed: lengths spread evenly from 32 to --seq, without padding", Destination: &b.layout},
			&cli.BoolFlag{Name: "ckpt", Usage: "gradient checkpointing", Destination: &b.checkpoint},
		),
		run: func(ctx context.Context, common benchFlags) (benchTable, error) { return b.run(ctx, common.reps) },
	}
}

func (b loraBench) check() error {
	if err := checkBounds(bound{"batch", b.batch, 1, 1 << 16}, bound{"seq", b.seq, 2, llamaLongest}); err != nil {
		return err
	}
	switch {
	case b.layout != "full" && b.layout != "mixed":
		return fmt.Errorf("--layout %.40q is not full or mixed", b.layout)
	case b.layout == "mixed" && b.seq < mixedShortest:
		return fmt.Errorf("--seq %d is below %d, the shortest length of --layout mixed", b.seq, mixedShortest)
	}
	return nil
}

// sequences samples token ids; all but the first are labels. The lengths of --layout mixed are spread evenly, so their sum
// equals the expected sum of uniform lengths.
func (b loraBench) sequences(vocab int) (sequences []policy.Sequence, tokens int) {
	rng := rand.New(rand.NewPCG(7, 0))
	for _, n := range rng.Perm(b.batch) {
		length := b.seq
		if b.layout == "mixed" && b.batch > 1 {
			length = mixedShortest + n*(b.seq-mixedShortest)/(b.batch-1)
		}
		q := policy.Sequence{IDs: make([]int32, length), Labels: make([]bool, length)}
		for i := range q.IDs {
			q.IDs[i], q.Labels[i] = int32(firstWord+rng.IntN(vocab-firstWord)), i > 0
		}
		sequences = append(sequences, q)
		tokens += length
	}
	return sequences, tokens
}

func (b loraBench) run(ctx context.Context, reps int) (result loraResult, err error) {
	if err := b.check(); err != nil {
		return result, err
	}
	p, err := b.policy()
	if err != nil {
		return result, err
	}
	defer p.Close()
	sequences, tokens := b.sequences(p.VocabSize())
	source, err := epochs.New(policy.Samples(sequences), b.batch, 0, 0)
	if err != nil {
		return result, err
	}
	trainer, err := train.New(p, source, &algo.SFT{}, training(train.Config{Checkpointing: train.Checkpointing{Checkpoint: b.checkpoint}}), run.Hooks{})
	if err != nil {
		return result, err
	}
	defer trainer.Close()
	figures, err := measureStep(ctx, func() error { _, err := trainer.Step(ctx); return err }, reps, b.dtype)
	if err != nil {
		return result, err
	}
	_, trainable := p.Parameters()
	flops := stepFLOPs(llamaShapes[b.shape], trainable, sequences)
	return loraResult{
		Case: "lora_step", Shape: b.shape, R: b.r, Batch: b.batch, Seq: b.seq, Layout: b.layout, Checkpoint: b.checkpoint,
		RealTokens: tokens, RowTokens: tokens, TokensPerS: float64(tokens) / figures.Best,
		StepFLOPs: flops, TFLOPPerS: flops / figures.Best / 1e12, Trainable: trainable,
		RSSBefore: figures.PeakRSS - figures.StepExtra, benchFigures: figures,
	}, nil
}

func (r loraResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, r %d, %s, %d threads, %s\n", r.Case, r.Shape, r.R, r.DType, r.Threads, r.CPU)
	fmt.Fprintf(t, "batch\t%d sequences, %s, %d tokens\n", r.Batch, r.Layout, r.RealTokens)
	r.times(t, fmt.Sprintf("%.1f tokens/s, %.2f TFLOP/s", r.TokensPerS, r.TFLOPPerS))
	return t.Flush()
}
