// Package preference is the task of preferences: pairs of a chosen and a rejected answer, or single answers that are good
// or bad, in the layouts of package chat.
package preference

import (
	"context"
	_ "embed"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
)

//go:embed preference.yaml
var recipe string

func init() {
	envs.Register(envs.Definition{
		Name: "preference", Help: "learn from preferences, or a reward model of them", Recipe: recipe, Preferences: true,
		Options: func() any { return &files{} }, Needs: "columns chosen and rejected, or prompt, completion and label",
	})
}

// files are those of a data set.
type files struct {
	Dataset       string `option:"dataset" arg:"FILE|NAME" common:"true" help:"chosen and rejected answers with their prompts, or single answers with labels: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	DatasetConfig string `option:"dataset_config" needs:"dataset" help:"one of several configurations of --dataset"`
	MaxSamples    int    `option:"max_samples" range:"[0,)" help:"use at most this many rows of each part; 0 = all"`
}

// Records implements envs.RecordSource.
func (o *files) Records(ctx context.Context, s envs.Setup) (envs.Records, error) {
	return chat.Records(ctx, s, o.Dataset, o.DatasetConfig, o.MaxSamples)
}
