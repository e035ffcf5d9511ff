package policy

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
)

// baseModel finds the model that the adapter in dir is for, at the revision that it names.
func baseModel(ctx context.Context, client *hub.Client, dir string, c lora.Config) (hub.Model, error) {
	name := c.BaseModel
	// A folder has no revisions.
	if _, err := os.Stat(name); err != nil && c.Revision != "" && c.Revision != "main" {
		name += "@" + c.Revision
	}
	model, err := client.Model(ctx, name, hub.Weights)
	if err == nil {
		err = cmp.Or(model.CheckBase(), c.CheckBase(model.Dir))
	}
	if err != nil {
		return hub.Model{}, fmt.Errorf("%s: base_model_name_or_path: %w", filepath.Join(dir, lora.ConfigFile), err)
	}
	return model, nil
}
