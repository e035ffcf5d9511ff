package chat

import (
	"context"
	_ "embed"
	"iter"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed chat.yaml
var recipe string

//go:embed model.yaml
var modelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "chat", Help: "fine-tune a chat model on texts or conversations (SFT)", Recipe: recipe, ModelRecipe: modelRecipe,
		Options: func() any { return &texts{} }, Needs: "a column text or messages, or prompt and completion",
	})
}

// texts are the options of the task.
type texts struct {
	Dataset string `option:"dataset" arg:"FILE|NAME" common:"true" help:"text, messages, or prompt and completion: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	dataset.Mixture
	Rows
}

// Check reports a mixture that cannot be read.
func (o *texts) Check() error {
	if _, err := o.Sets(); err != nil {
		return &envs.OptionError{Option: "dataset_mix", Err: err}
	}
	return nil
}

// Records implements envs.RecordSource.
func (o *texts) Records(ctx context.Context, s envs.Setup) (envs.Records, error) {
	records, err := o.Rows.Records(ctx, s, o.Dataset)
	if err != nil {
		return records, err
	}
	sets, err := o.Sets()
	for _, set := range sets {
		files, err := s.MixedFiles(ctx, set.Name, o.TrainSplit)
		if err != nil {
			return records, err
		}
		records.Mixed = append(records.Mixed, first(set.Spread(s.Reader.Records(files...)), o.MaxSamples))
	}
	return records, err
}

// Rows are the options that say which rows of a data set are read.
type Rows struct {
	DatasetConfig string `option:"dataset_config" needs:"dataset" help:"configuration of --dataset, if it has several"`
	TrainSplit    string `option:"train_split" default:"train" help:"split to train on"`
	EvalSplit     string `option:"eval_split" default:"validation" help:"split to evaluate on; if the data lacks it, training rows are held out (see --validation-share)"`
	dataset.OnBadRow
	MaxSamples int `option:"max_samples" range:"[0,)" help:"maximum rows per split (0 = all)"`
}

// Records returns the rows of a data set's training split and, if it has one, of its evaluation split. Errors in finding
// the data set are OptionErrors of dataset or of a split.
func (o Rows) Records(ctx context.Context, s envs.Setup, name string) (envs.Records, error) {
	parts, err := s.Find(ctx, name, o.DatasetConfig, o.TrainSplit, o.EvalSplit)
	if err != nil {
		return envs.Records{}, &envs.OptionError{Option: "dataset", Err: err}
	}
	if parts, err = o.named(parts); err != nil {
		return envs.Records{}, err
	}
	divided, err := s.Reader.Divide(parts)
	if err != nil {
		return envs.Records{}, err
	}
	records := envs.Records{Train: first(divided.Train, o.MaxSamples), SkipBad: o.OnBadRow.Faults().Skip}
	if divided.Given {
		records.Validation = first(divided.Validation, o.MaxSamples)
	}
	return records, nil
}

// named gives the splits that were asked for the usual names.
func (o Rows) named(parts []dataset.Part) ([]dataset.Part, error) {
	var named []dataset.Part
	for _, split := range []struct{ option, name, usual string }{{"train_split", o.TrainSplit, dataset.Train}, {"eval_split", o.EvalSplit, dataset.Val}} {
		files, err := dataset.FilesOf(parts, split.name)
		switch {
		case err == nil:
			named = append(named, dataset.Part{Split: split.usual, Files: files})
		case split.option == "train_split" || !slices.Contains([]string{"validation", dataset.Val, dataset.Test}, split.name):
			return nil, &envs.OptionError{Option: split.option, Err: err}
		}
	}
	return named, nil
}

// first yields the first n records, or all if n is 0.
func first(records iter.Seq2[dataset.Record, error], n int) iter.Seq2[dataset.Record, error] {
	return func(yield func(dataset.Record, error) bool) {
		i := 0
		for r, err := range records {
			if n > 0 && i == n || !yield(r, err) {
				return
			}
			i++
		}
	}
}
