package intent

import (
	"context"
	_ "embed"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed intent.yaml
var recipe string

//go:embed dataset.yaml
var dataRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "intent", Help: "classify texts: the built-in questions by subject, or your own data", Recipe: recipe, DataRecipe: dataRecipe,
		Options: func() any { return &questions{} }, Folder: "intent_classifier", Default: true, BuiltIn: "built-in questions",
	})
}

// questions are the options of the task.
type questions struct{ envs.LabelledRows }

func (o *questions) Rows(ctx context.Context, s envs.Setup) ([]dataset.Row, error) {
	if o.Dataset == "" {
		return o.Balanced(Builtin())
	}
	return o.LabelledRows.Rows(ctx, s)
}
