package chat

import (
	"context"
	_ "embed"
	"iter"

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
	Dataset       string `option:"dataset" arg:"FILE|NAME" common:"true" help:"text, messages, or prompt and completion: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	DatasetConfig string `option:"dataset_config" needs:"dataset" help:"configuration of --dataset, if it has several"`
	dataset.OnBadRow
	MaxSamples int `option:"max_samples" range:"[0,)" help:"maximum rows per split (0 = all)"`
}

func (o *texts) Records(ctx context.Context, s envs.Setup) (envs.Records, error) {
	return Records(ctx, s, o.Dataset, o.DatasetConfig, o.MaxSamples, o.OnBadRow)
}

// Records returns the rows of a data set's training split and, if it has one, of its validation split: the first most rows
// of each, or all if most is 0. Errors in finding the data set are OptionErrors of dataset.
func Records(ctx context.Context, s envs.Setup, name, config string, most int, bad dataset.OnBadRow) (envs.Records, error) {
	parts, err := s.Find(ctx, name, config, "train", "validation")
	if err != nil {
		return envs.Records{}, &envs.OptionError{Option: "dataset", Err: err}
	}
	divided, err := dataset.Divide(parts)
	if err != nil {
		return envs.Records{}, err
	}
	records := envs.Records{Train: first(divided.Train, most), SkipBad: bad.Faults().Skip}
	if divided.Given {
		records.Validation = first(divided.Validation, most)
	}
	return records, nil
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
