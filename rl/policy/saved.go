package policy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// savedAdapter is the adapter of a folder, as lora.Load reads it.
type savedAdapter struct {
	dir    string
	config lora.Config
	pairs  []lora.Pair
	extra  map[string]safetensors.Tensor // tensors saved with the pairs
}

func readAdapter(dir string) (a savedAdapter, err error) {
	a.dir = dir
	a.config, a.pairs, a.extra, err = lora.Load(dir)
	return a, err
}

// base finds the model that the adapter is for, at the revision that it names.
func (a savedAdapter) base(ctx context.Context, client *hub.Client) (hub.Model, error) {
	name, revision := a.config.BaseModel, a.config.Revision
	// A folder has no revisions.
	if _, err := os.Stat(name); err != nil && revision != "" && revision != "main" {
		name += "@" + revision
	}
	model, err := client.Model(ctx, name, hub.Weights)
	if err == nil {
		err = cmp.Or(model.CheckBase(), a.config.CheckBase(model.Dir))
	}
	if err != nil {
		return hub.Model{}, fmt.Errorf("%s: base_model_name_or_path: %w", filepath.Join(a.dir, lora.ConfigFile), err)
	}
	return model, nil
}

// fits checks the shapes against a model whose layers have prefix before the adapter's names; name is the model's.
func (a savedAdapter) fits(model *transformers.Config, prefix, name string) error {
	return a.wrap(fits(model, a.config, a.pairs, prefix), name)
}

func (a savedAdapter) wrap(err error, model string) error {
	if err != nil {
		return fmt.Errorf("%s does not fit %s: %w", a.dir, model, err)
	}
	return nil
}

// fitsLanguageModel is FitsLanguageModel of a model called name.
func (a savedAdapter) fitsLanguageModel(model *transformers.Config, name string) error {
	return a.wrap(FitsLanguageModel(model, a.config, a.pairs, a.extra), name)
}

// mergedOnly names what of the adapter can only be merged into the weights, "" for nothing.
func (a savedAdapter) mergedOnly() string {
	switch {
	case a.config.DoRA:
		return "magnitudes of DoRA"
	case len(a.config.ModulesToSave) > 0:
		return "full modules (modules_to_save: " + strings.Join(a.config.ModulesToSave, ", ") + ")"
	case len(a.extra) > 0:
		return "full modules"
	}
	return ""
}

// changes are what merging the adapter does to a model's weights, by name.
func (a savedAdapter) changes() (map[string]func([]float32), error) {
	all := mergeChanges(a.pairs)
	for name, tensor := range a.extra {
		data, err := tensor.Float32s()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.dir, err)
		}
		all[name] = func(weight []float32) { copy(weight, data) }
	}
	return all, nil
}

func fits(model *transformers.Config, c lora.Config, pairs []lora.Pair, prefix string) error {
	shapes := map[string][2]int{}
	for _, linear := range model.Linears() {
		shapes[strings.TrimPrefix(linear.Name, prefix)] = [2]int{linear.Out, linear.In}
	}
	return c.Fits(pairs, shapes)
}

// FitsLanguageModel checks that an adapter, as lora.Load reads it, fits the model. Errors name what differs.
func FitsLanguageModel(model *transformers.Config, c lora.Config, pairs []lora.Pair, extra map[string]safetensors.Tensor) error {
	if c.TaskType != "" && c.TaskType != lora.CausalLM {
		return fmt.Errorf("task_type is %s; an adapter of a language model has %s", c.TaskType, lora.CausalLM)
	}
	if err := fits(model, c, pairs, ""); err != nil {
		return err
	}
	have := map[string]transformers.TensorSpec{}
	for _, spec := range model.TensorNames() {
		for _, name := range spec.Candidates {
			have[name] = spec
		}
	}
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		spec, ok := have[name]
		switch {
		case !ok:
			return fmt.Errorf("modules_to_save: the adapter has tensor %.120q, the model has not", name)
		case spec.Transposed:
			return fmt.Errorf("modules_to_save: tensor %s is the weight of a Conv1D, which is not supported", name)
		case !slices.Equal(spec.Shape, extra[name].Shape):
			return fmt.Errorf("modules_to_save: tensor %s has shape %v, the model's has %v: if the vocabulary was resized for the adapter, resize the model's too", name, extra[name].Shape, spec.Shape)
		}
	}
	return nil
}
