package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch/transformers"
)

// classifierBench is the case classifier_step.
type classifierBench struct {
	mode, shape                    string
	batch, seq, r, classes, epochs int
	mixed                          bool
	dtype                          string
}

type classifierResult struct {
	Case        string  `json:"case"`
	Mode        string  `json:"mode"`
	Shape       string  `json:"shape"`
	Batch       int     `json:"batch"`
	Seq         int     `json:"seq"`
	Mixed       bool    `json:"mixed"`
	R           int     `json:"r"`
	Epochs      int     `json:"epochs"` // updates per rollout; 1 unless mode is ppo
	Tokens      int     `json:"tokens"` // of the batch, without padding
	SamplesPerS float64 `json:"samples_per_s"`
	benchFigures
}

func classifierBenchCase() benchCase {
	var b classifierBench
	return benchCase{
		name:  "classifier_step",
		usage: "classifier training step: random encoder, LoRA on query and value",
		flags: []cli.Flag{
			&cli.StringFlag{Name: "mode", Value: "sft", Usage: "sft, ppo (one rollout and its updates) or infer", Destination: &b.mode},
			&cli.StringFlag{Name: "shape", Value: "base", Usage: "base (BERT-base) or minilm (all-MiniLM-L6-v2)", Destination: &b.shape},
			&cli.IntFlag{Name: "batch", Value: 8, Usage: "sequences per batch", Destination: &b.batch},
			&cli.IntFlag{Name: "seq", Value: 32, Usage: "length of the longest sequence in tokens, at most 512", Destination: &b.seq},
			&cli.IntFlag{Name: "r", Value: 8, Usage: "LoRA rank", Destination: &b.r},
			&cli.IntFlag{Name: "classes", Value: 14, Usage: "number of labels", Destination: &b.classes},
			&cli.IntFlag{Name: "epochs", Value: 4, Usage: "updates per rollout in mode ppo", Destination: &b.epochs},
			&cli.BoolFlag{Name: "mixed", Usage: "spread lengths evenly from 8 to --seq", Destination: &b.mixed},
			&cli.StringFlag{Name: "dtype", Value: "fp32", Usage: "dtype of the frozen weights: fp32 or bf16", Destination: &b.dtype},
		},
		run: func(ctx context.Context, common benchFlags) (benchTable, error) { return b.run(ctx, common.reps) },
	}
}

func (b classifierBench) check() error {
	if _, err := weightDType(b.dtype); err != nil {
		return err
	}
	encoder, ok := bertShapes[b.shape]
	if !ok {
		return fmt.Errorf("--shape: unknown shape %.40q; choose base or minilm", b.shape)
	}
	if err := checkBounds(bound{"batch", b.batch, 1, 1 << 16}, bound{"seq", b.seq, 1, encoder.MaxPositionEmbeddings},
		bound{"r", b.r, 1, encoder.HiddenSize}, bound{"classes", b.classes, 2, 1 << 16}, bound{"epochs", b.epochs, 1, 1 << 16}); err != nil {
		return err
	}
	if b.mixed && b.seq < shortest {
		return fmt.Errorf("--seq: %d is below %d, the shortest length of --mixed", b.seq, shortest)
	}
	if !slices.Contains([]string{"sft", "ppo", "infer"}, b.mode) {
		return fmt.Errorf("--mode: %.40q is not sft, ppo or infer", b.mode)
	}
	return nil
}

var bertShapes = map[string]*transformers.Config{"base": bertShape(768, 12, 3072), "minilm": bertShape(384, 6, 1536)}

func bertShape(hidden, layers, intermediate int) *transformers.Config {
	return &transformers.Config{
		ModelType: "bert", VocabSize: 30522, HiddenSize: hidden, NumHiddenLayers: layers, NumAttentionHeads: 12, IntermediateSize: intermediate,
		HiddenAct: "gelu", LayerNormEps: 1e-12, MaxPositionEmbeddings: 512, TypeVocabSize: 2,
	}
}

const (
	shortest             = 8 // tokens of a sequence of --mixed
	firstToken, endToken = 1000, 30000
)

// examples samples token ids and labels. The lengths of --mixed are spread evenly, so their sum equals the expected sum of
// uniform lengths.
func (b classifierBench) examples() (e policy.Examples, tokens int) {
	rng := rand.New(rand.NewPCG(5, 0))
	for _, n := range rng.Perm(b.batch) {
		length := b.seq
		if b.mixed && b.batch > 1 {
			length = shortest + n*(b.seq-shortest)/(b.batch-1)
		}
		ids := make([]int32, length)
		for i := range ids {
			ids[i] = int32(firstToken + rng.IntN(endToken-firstToken))
		}
		e.IDs, e.Labels = append(e.IDs, ids), append(e.Labels, rng.IntN(b.classes))
		tokens += length
	}
	return e, tokens
}

func (b classifierBench) run(ctx context.Context, reps int) (result classifierResult, err error) {
	if err := b.check(); err != nil {
		return result, err
	}
	labels := make([]string, b.classes)
	for i := range labels {
		labels[i] = strconv.Itoa(i)
	}
	p, err := policy.RandomClassifier(bertShapes[b.shape], policy.Config{
		BaseModel: "random", DType: b.dtype, Labels: labels, Pooling: transformers.PoolMean, R: b.r, Alpha: 2 * float64(b.r),
		Targets: []string{"query", "value"}, Seed: 1, Frozen: b.mode == "infer",
	})
	if err != nil {
		return result, err
	}
	defer p.Close()
	examples, tokens := b.examples()
	step := func() error { _, err := p.Probs(ctx, examples.IDs); return err }
	if b.mode != "infer" {
		trainer, err := b.trainer(p, examples)
		if err != nil {
			return result, err
		}
		defer trainer.Close()
		step = func() error { _, err := trainer.Step(ctx); return err }
	}

	figures, err := measureStep(ctx, step, reps, b.dtype)
	if err != nil {
		return result, err
	}
	result = classifierResult{
		Case: "classifier_step", Mode: b.mode, Shape: b.shape, Batch: b.batch, Seq: b.seq, Mixed: b.mixed, R: b.r, Epochs: 1, Tokens: tokens,
		SamplesPerS: float64(b.batch) / figures.Best, benchFigures: figures,
	}
	if b.mode == "ppo" {
		result.Epochs = b.epochs
	}
	return result, nil
}

// trainer repeats SFT updates, or rollouts with their updates, on all examples.
func (b classifierBench) trainer(p *policy.Classifier, examples policy.Examples) (*train.Trainer, error) {
	if b.mode == "sft" {
		source, err := epochs.New(examples.Samples(), b.batch, 0, 0)
		if err != nil {
			return nil, err
		}
		return train.New(p, source, &algo.SFT{}, training(train.Config{}), run.Hooks{})
	}
	rewards, err := reward.ParseLabels("accuracy", p.Labels, reward.Options{})
	if err != nil {
		return nil, err
	}
	source, err := rollout.NewLabels(p, nil, examples, rewards, rollout.LabelsConfig{
		LabelOptions: rollout.LabelOptions{BufferSize: b.batch, BatchSize: b.batch}, Values: true,
	})
	if err != nil {
		return nil, err
	}
	ppo := &algo.PPO{Clip: algo.Clip{Low: 0.2, High: 0.2}, Gamma: 1, ValueCoef: 0.5, Whiten: true}
	return train.New(p, source, ppo, training(train.Config{
		Updates: train.Updates{Epochs: b.epochs}, Regularisation: train.Regularisation{EntropyCoef: 0.01},
	}), run.Hooks{})
}

func (r classifierResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, %s, r %d, %s, %d threads, %s\n", r.Case, r.Mode, r.Shape, r.R, r.DType, r.Threads, r.CPU)
	fmt.Fprintf(t, "batch\t%d sequences, %d tokens\n", r.Batch, r.Tokens)
	r.times(t, fmt.Sprintf("%.1f samples/s", r.SamplesPerS))
	return t.Flush()
}
