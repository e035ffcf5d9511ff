// Package preference is the task of preference training: pairs of chosen and rejected responses, or single responses
// labelled good or bad, in the layouts of package chat.
package preference

import (
	"context"
	_ "embed"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed preference.yaml
var recipe string

//go:embed model.yaml
var modelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "preference", Help: "train on preferences (DPO and others), or train a reward model", Recipe: recipe, ModelRecipe: modelRecipe, Preferences: true,
		Options: func() any { return &files{} }, Needs: "columns chosen and rejected, or prompt, completion and label",
	})
}

// files are the options of the task.
type files struct {
	Dataset       string `option:"dataset" arg:"FILE|NAME" common:"true" help:"prompts with chosen and rejected responses, or with one labelled response: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	DatasetConfig string `option:"dataset_config" needs:"dataset" help:"configuration of --dataset, if it has several"`
	dataset.OnBadRow
	MaxSamples int `option:"max_samples" range:"[0,)" help:"maximum rows per split (0 = all)"`
}

// Records implements envs.RecordSource.
func (o *files) Records(ctx context.Context, s envs.Setup) (envs.Records, error) {
	return chat.Records(ctx, s, o.Dataset, o.DatasetConfig, o.MaxSamples, o.OnBadRow)
}
