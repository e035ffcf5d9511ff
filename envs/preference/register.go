// Package preference is the task of preference training: pairs of chosen and rejected responses, or single responses
// labelled good or bad, in the layouts of package chat.
package preference

import (
	"context"
	_ "embed"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
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
	Dataset string `option:"dataset" arg:"FILE|NAME" common:"true" help:"prompts with chosen and rejected responses, or with one labelled response: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	chat.Rows
}

// Records implements envs.RecordSource.
func (o *files) Records(ctx context.Context, s envs.Setup) (envs.Records, error) {
	return o.Rows.Records(ctx, s, o.Dataset)
}
