package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch/transformers"
)

// classifierBench is the case classifier_step.
type classifierBench struct {
	Mode    string `json:"mode" option:"mode" default:"sft" allowed:"sft,ppo,infer" help:"sft, ppo (one rollout and its updates) or infer"`
	Shape   string `json:"shape" option:"shape" default:"base" allowed:"base,minilm" help:"base (BERT-base) or minilm (all-MiniLM-L6-v2)"`
	Batch   int    `json:"batch" option:"batch" default:"8" range:"[1,65536]" help:"sequences per batch"`
	Seq     int    `json:"seq" option:"seq" default:"32" range:"[1,512]" help:"length of the longest sequence in tokens"`
	R       int    `json:"r" option:"r" default:"8" range:"[1,768]" help:"LoRA rank"`
	Classes int    `json:"-" option:"classes" default:"14" range:"[2,65536]" help:"number of labels"`
	Epochs  int    `json:"-" option:"epochs" default:"4" range:"[1,65536]" help:"updates per rollout in mode ppo"`
	Mixed   bool   `json:"mixed" option:"mixed" help:"spread lengths evenly from 8 to --seq"`
	DType   string `json:"-" option:"dtype" default:"fp32" allowed:"fp32,bf16" help:"dtype of the frozen weights: fp32 or bf16"`
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

// examples samples token ids and labels.
func (b *classifierBench) examples() (e policy.Examples, tokens int) {
	rng, least := rand.New(rand.NewPCG(5, 0)), 0
	if b.Mixed {
		least = shortest
	}
	for _, length := range spread(rng, b.Batch, least, b.Seq) {
		e.IDs, e.Labels = append(e.IDs, randomTokens(rng, length, firstToken, endToken)), append(e.Labels, rng.IntN(b.Classes))
		tokens += length
	}
	return e, tokens
}

func (b *classifierBench) run(ctx context.Context, reps int) (*result, error) {
	if err := inRange("r", b.R, 1, bertShapes[b.Shape].HiddenSize); err != nil {
		return nil, err
	}
	if b.Mixed && b.Seq < shortest {
		return nil, fmt.Errorf("--seq: %d is below %d, the shortest length of --mixed", b.Seq, shortest)
	}
	labels := make([]string, b.Classes)
	for i := range labels {
		labels[i] = strconv.Itoa(i)
	}
	p, err := policy.RandomClassifier(bertShapes[b.Shape], policy.Config{
		BaseModel: "random", DType: b.DType, Labels: labels, Pooling: transformers.PoolMean, R: b.R, Alpha: 2 * float64(b.R),
		Targets: []string{"query", "value"}, Seed: 1, Frozen: b.Mode == "infer",
	})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	examples, tokens := b.examples()
	var f figures
	switch b.Mode {
	case "infer":
		f, err = measureStep(ctx, func() error { _, err := p.Probs(ctx, examples.IDs); return err }, reps, b.DType)
	case "sft":
		f, err = b.sft(ctx, p, examples, reps)
	default:
		f, err = b.ppo(ctx, p, examples, reps)
	}
	if err != nil {
		return nil, err
	}
	updates, rate := 1, float64(b.Batch)/f.Best
	if b.Mode == "ppo" {
		updates = b.Epochs
	}
	return &result{
		figures: f,
		more:    map[string]any{"epochs": updates, "tokens": tokens, "samples_per_s": rate}, // updates per rollout; tokens without padding
		about:   fmt.Sprintf("%s, %s, r %d", b.Mode, b.Shape, b.R),
		before:  []string{fmt.Sprintf("batch\t%d sequences, %d tokens", b.Batch, tokens)},
		speed:   fmt.Sprintf("%.1f samples/s", rate),
	}, nil
}

// sft measures updates on all examples.
func (b *classifierBench) sft(ctx context.Context, p *policy.Classifier, examples policy.Examples, reps int) (figures, error) {
	source, err := epochs.New(examples.Samples(), b.Batch, 0, 0)
	if err != nil {
		return figures{}, err
	}
	return measureTraining(ctx, p, source, &algo.SFT{}, train.Config{}, reps, b.DType)
}

// ppo measures rollouts on all examples with their updates.
func (b *classifierBench) ppo(ctx context.Context, p *policy.Classifier, examples policy.Examples, reps int) (figures, error) {
	rewards, err := reward.ParseLabels("accuracy", p.Labels, reward.Options{})
	if err != nil {
		return figures{}, err
	}
	source, err := rollout.NewLabels(p, nil, examples, rewards, rollout.LabelsConfig{
		LabelOptions: rollout.LabelOptions{BufferSize: b.Batch, BatchSize: b.Batch}, Values: true,
	})
	if err != nil {
		return figures{}, err
	}
	ppo := &algo.PPO{Clip: algo.Clip{Low: 0.2, High: 0.2}, Gamma: 1, ValueCoef: 0.5, Whiten: true}
	return measureTraining(ctx, p, source, ppo, train.Config{
		Updates: train.Updates{Epochs: b.Epochs}, Regularisation: train.Regularisation{EntropyCoef: 0.01},
	}, reps, b.DType)
}
