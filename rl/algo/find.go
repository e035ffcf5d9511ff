package algo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"rltrain/envs/dataset"
	"rltrain/lora"
	"rltrain/torch/hub"
)

// FindDataset finds the parts of a data set: a file or a folder, as dataset.Find does, or a repository of the
// Hub, org/name or org/name@revision, of which client fetches the files of the splits ("train", "validation",
// "test"), of all with none. config names one of several configurations, "" the default or only one.
func FindDataset(ctx context.Context, client *hub.Client, name, config string, splits ...string) ([]dataset.Part, error) {
	_, err := os.Stat(name)
	if path := filepath.IsAbs(name) || strings.HasPrefix(name, ".") || dataset.Readable(name); path || !errors.Is(err, fs.ErrNotExist) {
		return dataset.Find(config, name)
	}
	var parts []dataset.Part
	dir, err := client.Dataset(ctx, name, func(names []string, readme []byte) (files []string, err error) {
		parts, err = dataset.Choose(config, names, readme, splits...)
		for _, part := range parts {
			files = append(files, part.Files...)
		}
		return files, err
	})
	if err != nil {
		return nil, err
	}
	return dataset.Under(dir, parts), nil
}

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
