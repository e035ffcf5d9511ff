package main

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"rltrain/cmd/rltrain/config"
	"rltrain/envs/chat"
	"rltrain/envs/dataset"
	"rltrain/rl"
	"rltrain/rl/algo"
	"rltrain/rl/report"
	"rltrain/torch"
	"rltrain/torch/hub"
)

// streamValidation draws the rows that are kept for validation.
const streamValidation = 100

// chatStage fine-tunes a language model on texts, conversations, or prompts with completions.
func (t *trainer) chatStage(ctx context.Context) error {
	c := t.config
	policy, err := t.startingLanguageModel(ctx)
	if err != nil {
		return err
	}
	defer policy.Close()
	train, validation, err := t.loadSequences(ctx, policy)
	if err != nil {
		return err
	}
	return t.trainStage(supervisedStage, func(stage *algo.Stage) error {
		if err := t.beginChat(stage, policy, train, validation); err != nil {
			return err
		}
		settings := t.tokenSFT()
		settings.Epochs, settings.MaxUpdates = c.Epochs, c.MaxSteps
		if c.Packing {
			settings.Packing = c.MaxLength
		}
		result, err := algo.TokenSFT(ctx, policy, train.Sequences, validation.Sequences, settings, stage.Hooks("supervised", "update"))
		if err != nil {
			return err
		}
		return t.endChat(stage, policy, result)
	})
}

// tokenSFT is what supervised training is to do, but for how long.
func (t *trainer) tokenSFT() algo.TokenSFTConfig {
	c := t.config
	return algo.TokenSFTConfig{
		BatchSize: c.BatchSize, LearningRate: c.LearningRate, WeightDecay: c.WeightDecay, Schedule: c.LRSchedulerType,
		Warmup: c.WarmupRatio, MaxGradNorm: c.MaxGradNorm, MicroTokens: chatMicroTokens(c), Checkpoint: c.GradientCheckpointing, Seed: c.Seed,
	}
}

// startingLanguageModel is the model of --model with what is to be trained, or that of --pretrained-model.
func (t *trainer) startingLanguageModel(ctx context.Context) (*algo.TokenPolicy, error) {
	c := t.config
	full := c.FullTuning()
	if c.PretrainedModel != "" {
		return t.trainedLanguageModel(ctx, c.PretrainedModel, supervisedStage)
	}
	model, err := t.modelFolder(ctx)
	if err != nil {
		return nil, err
	}
	policy := algo.TokenPolicyConfig{Dir: model.Dir, BaseModel: model.Name, Revision: model.Commit, DType: dtypeOf(c), Full: full, Seed: c.Seed}
	if !full {
		policy.R, policy.Alpha, policy.Dropout, policy.Targets = c.LoraR, float64(c.LoraAlpha), c.LoraDropout, c.LoraTargetModules
	}
	return algo.NewTokenPolicy(policy)
}

// modelFolder is the folder of --model; of the model tiny it is made.
func (t *trainer) modelFolder(ctx context.Context) (hub.Model, error) {
	c := t.config
	if c.Model == config.TinyModel {
		kind, write := "tiny", algo.TinyModel
		if c.Task == "chat" {
			kind, write = "tiny-chat", algo.TinyChatModel
		}
		name := fmt.Sprintf("%s-%dx%d-seed%d", kind, c.TinyLayers, c.TinyHidden, c.Seed)
		model := hub.Model{Dir: filepath.Join(c.OutputDir, name)}
		return model, write(model.Dir, c.TinyLayers, c.TinyHidden, c.Seed)
	}
	return t.baseModel(ctx)
}

// trainedLanguageModel loads a policy, by its folder or name, to go on training it in a stage.
func (t *trainer) trainedLanguageModel(ctx context.Context, dir, stage string) (*algo.TokenPolicy, error) {
	c := t.config
	if sameFolder(dir, t.stageDir(stage)) {
		return nil, c.Errorf("pretrained_model", "%s is the folder that this run writes; choose another --output-dir", dir)
	}
	policy, err := algo.LoadTokenPolicy(ctx, t.hub, dir, "", dtypeOf(c), true)
	if err != nil {
		return nil, c.Errorf("pretrained_model", "%v", err)
	}
	return policy, nil
}

// sameFolder is false too where one of them is not there.
func sameFolder(a, b string) bool {
	infoA, err := os.Stat(a)
	if err != nil {
		return false
	}
	infoB, err := os.Stat(b)
	return err == nil && os.SameFile(infoA, infoB)
}

func dtypeOf(c *config.Config) string {
	if c.DType == "auto" {
		return ""
	}
	return c.DType
}

// chatMicroTokens keeps a step's activations under a few gigabytes at the sizes of small language models.
func chatMicroTokens(c *config.Config) int {
	if c.TokensPerMicroBatch > 0 {
		return c.TokensPerMicroBatch
	}
	return 4096
}

// loadSequences reads the data set's training and validation examples. Without a validation split a share of
// the training rows is kept for it.
func (t *trainer) loadSequences(ctx context.Context, policy *algo.TokenPolicy) (train, validation algo.TokenExamples, err error) {
	c := t.config
	t.data.name = c.Dataset
	parts, err := algo.FindDataset(ctx, t.hub, c.Dataset, c.DatasetConfig, "train", "validation")
	if err != nil {
		return train, validation, c.Errorf("dataset", "%v", err)
	}
	options := algo.EncodeOptions{MaxLength: c.MaxLength, CompletionOnly: c.CompletionOnlyLoss, AssistantOnly: c.AssistantOnlyLoss}
	read := func(split string) (algo.TokenExamples, error) {
		files, err := dataset.FilesOf(parts, split)
		if err != nil {
			return algo.TokenExamples{}, err
		}
		return policy.Encode(first(chat.Examples(dataset.Records(files...), chat.LanguageModelling, chat.PromptCompletion), c.MaxSamples), options)
	}
	if train, err = read(dataset.Train); err != nil {
		return train, validation, err
	}
	for _, part := range parts {
		if part.Split == "validation" {
			validation, err = read(part.Split)
			return train, validation, err
		}
	}
	keep := int(c.ValidationShare * float64(len(train.Sequences)))
	order := rl.Stream(c.Seed, streamValidation).Perm(len(train.Sequences))
	held := map[int]bool{}
	for _, i := range order[:keep] {
		held[i] = true
	}
	all := train.Sequences
	train.Sequences = nil
	for i, q := range all {
		if held[i] {
			validation.Sequences = append(validation.Sequences, q)
		} else {
			train.Sequences = append(train.Sequences, q)
		}
	}
	if len(train.Sequences) == 0 {
		return train, validation, fmt.Errorf("%s: no rows are left for training", c.Dataset)
	}
	return train, validation, nil
}

// first is at most n examples, all with n = 0.
func first(examples iter.Seq2[chat.Example, error], n int) iter.Seq2[chat.Example, error] {
	return func(yield func(chat.Example, error) bool) {
		i := 0
		for e, err := range examples {
			if n > 0 && i == n || !yield(e, err) {
				return
			}
			i++
		}
	}
}

func (t *trainer) beginChat(stage *algo.Stage, policy *algo.TokenPolicy, train, validation algo.TokenExamples) error {
	if stage.Resumed() {
		return nil
	}
	total, trainable := policy.Parameters()
	what := "supervised fine-tuning with LoRA"
	if t.config.FullTuning() {
		what = "supervised fine-tuning of all weights"
	}
	header := report.Header{
		Task: t.config.Task, Stage: what, Model: policy.BaseModel, Total: total, Trainable: trainable, Device: "cpu",
		Threads: torch.Threads(), Data: t.data.name, Output: stage.Dir(),
		Splits: []report.Split{{Name: "train", Rows: len(train.Sequences)}, {Name: "validation", Rows: len(validation.Sequences)}},
	}
	if err := stage.Printf("%s", header.String()); err != nil {
		return err
	}
	if err := stage.Printf("Texts end at %s", eosNames(policy)); err != nil {
		return err
	}
	if cut := train.Cut + validation.Cut; cut > 0 {
		if err := stage.Printf("%d examples were longer than %d tokens and were cut", cut, min(t.config.MaxLength, policy.MaxLength())); err != nil {
			return err
		}
	}
	if dropped := train.Dropped + validation.Dropped; dropped > 0 {
		return stage.Printf("%d examples were left out: they have no token to train", dropped)
	}
	return nil
}

func (t *trainer) endChat(stage *algo.Stage, policy *algo.TokenPolicy, result algo.TokenSFTResult) error {
	dir := stage.Dir()
	if err := policy.Save(dir); err != nil {
		return err
	}
	if err := drawCurves(stage); err != nil {
		return err
	}
	line := fmt.Sprintf("Supervised training complete after %d updates", result.Updates)
	if result.Best.Labels > 0 {
		line += fmt.Sprintf(". Best epoch: %d (validation loss %.4f, perplexity %.3f)", result.BestEpoch, result.Best.Loss, result.Best.Perplexity())
	}
	if err := stage.Printf("%s", line); err != nil {
		return err
	}
	return t.console.Print("Saved in " + dir + ". Try: echo 'Hello' | rltrain generate --model " + dir)
}
