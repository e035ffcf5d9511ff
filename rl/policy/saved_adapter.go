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
	"github.com/rltrain/rltrain/torch/transformers"
)

// savedAdapter is the adapter of a folder.
type savedAdapter struct {
	lora.Adapter
	dir string
}

func readAdapter(dir string) (savedAdapter, error) {
	a, err := lora.Load(dir)
	return savedAdapter{a, dir}, err
}

// base finds the model that the adapter is for, at the revision that it names.
func (a savedAdapter) base(ctx context.Context, client *hub.Client, need hub.Need) (hub.Model, error) {
	name, revision := a.Config.BaseModel, a.Config.Revision
	// A folder has no revisions.
	if _, err := os.Stat(name); err != nil && revision != "" && revision != "main" {
		name += "@" + revision
	}
	model, err := client.Model(ctx, name, need)
	if err == nil {
		err = cmp.Or(model.CheckBase(), a.Config.CheckBase(model.Dir))
	}
	if err != nil {
		return hub.Model{}, fmt.Errorf("%s: base_model_name_or_path: %w", filepath.Join(a.dir, lora.ConfigFile), err)
	}
	return model, nil
}

// fits checks the shapes against a model called name.
func (a savedAdapter) fits(model *transformers.Config, name string) error {
	return a.wrap(fits(model, a.Adapter), name)
}

func (a savedAdapter) wrap(err error, model string) error {
	if err != nil {
		return fmt.Errorf("%s does not fit %s: %w", a.dir, model, err)
	}
	return nil
}

// fitsLanguageModel is FitsLanguageModel of a model called name.
func (a savedAdapter) fitsLanguageModel(model *transformers.Config, name string) error {
	return a.wrap(FitsLanguageModel(model, a.Adapter), name)
}

// besideHead is an error if a classifier's adapter has more than pairs and the tensors of its head. With bare, the head is in
// another file.
func (a savedAdapter) besideHead(bare bool) error {
	pairs := a.Adapter
	if !bare {
		pairs.Extra, pairs.Config.ModulesToSave = nil, nil
	}
	if only := pairs.MergedOnly(); only != "" {
		return fmt.Errorf("%s has %s; a classifier's adapter can have low-rank pairs and the head only", a.dir, only)
	}
	return nil
}

// trainable says whether the adapter is what can be trained further: pairs, their magnitudes and full modules.
func (a savedAdapter) trainable() bool {
	rest := a.Adapter
	if len(rest.Config.ModulesToSave) > 0 && !rest.Config.WeightTying {
		rest.Extra, rest.Config.ModulesToSave = nil, nil
	}
	rest.Config.DoRA = false
	return rest.MergedOnly() == ""
}

// changes are what merging the adapter does to the weights of a model, which it fits, by name.
func (a savedAdapter) changes(model *transformers.Config) (map[string]func([]float32), error) {
	all := map[string]func([]float32){}
	add := func(name string, change func([]float32)) {
		if before := all[name]; before != nil {
			all[name] = func(weight []float32) { before(weight); change(weight) }
		} else {
			all[name] = change
		}
	}
	for name, tensor := range a.Extra {
		data, err := tensor.Float32s()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.dir, err)
		}
		add(name, func(weight []float32) { copy(weight, data) })
	}
	merge(model, a.Pairs, add)
	specs := tensorsOf(model)
	tokens := map[string]func([]float32){} // by the core's name
	for _, change := range a.Changes {
		spec, ok := specs[change.Tensor]
		if !ok { // it is optional
			continue
		}
		add(change.Tensor, change.Apply)
		tokens[spec.Name] = change.Apply
	}
	if embedding := tokens["embed.weight"]; embedding != nil && tokens["head.weight"] == nil && model.TieWordEmbeddings {
		for _, spec := range model.TensorNames() {
			if spec.Name == "head.weight" {
				add(spec.Candidates[0], embedding)
			}
		}
	}
	return all, nil
}

func fits(model *transformers.Config, a lora.Adapter) error {
	shapes := map[string]lora.Shape{}
	for _, linear := range append(model.Linears(), model.ExpertLinears()...) {
		shapes[strings.TrimPrefix(linear.Name, a.Config.Prefix)] = lora.Shape{Out: linear.Out, In: linear.In, Experts: linear.Experts}
	}
	return a.Fits(shapes)
}

// tensorsOf are the tensors of a model by each name that a folder may give them.
func tensorsOf(model *transformers.Config) map[string]transformers.TensorSpec {
	specs := map[string]transformers.TensorSpec{}
	for _, spec := range model.TensorNames() {
		for _, name := range spec.Candidates {
			specs[name] = spec
		}
	}
	return specs
}

// FitsLanguageModel checks that an adapter fits the model. Errors name what differs.
func FitsLanguageModel(model *transformers.Config, a lora.Adapter) error {
	if c := a.Config; c.TaskType != "" && c.TaskType != lora.CausalLM {
		return fmt.Errorf("task_type is %s; an adapter of a language model has %s", c.TaskType, lora.CausalLM)
	}
	if err := fits(model, a); err != nil {
		return err
	}
	specs := tensorsOf(model)
	for _, name := range slices.Sorted(maps.Keys(a.Extra)) {
		spec, ok := specs[name]
		switch {
		case !ok:
			return fmt.Errorf("modules_to_save: the adapter has tensor %.120q, the model has not", name)
		case spec.Transposed:
			return fmt.Errorf("modules_to_save: tensor %s is the weight of a Conv1D, which is not supported", name)
		case !slices.Equal(spec.Shape, a.Extra[name].Shape):
			return fmt.Errorf("modules_to_save: tensor %s has shape %v, the model's has %v: if the vocabulary was resized for the adapter, resize the model's too", name, a.Extra[name].Shape, spec.Shape)
		}
	}
	for _, change := range a.Changes {
		spec, ok := specs[change.Tensor]
		if !ok && !change.Optional {
			return fmt.Errorf("the adapter changes tensor %.120q, which the model lacks", change.Tensor)
		}
		if ok {
			if err := change.Fits(spec.Shape); err != nil {
				return err
			}
		}
	}
	return nil
}
