package policy

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// LoadToken loads a language model, or an adapter together with the base model that it names. model is a
// folder or a name as hub.Client.Model takes it, and so is adapter, an adapter for model, where it is not "". With
// trainable the policy goes on training what model holds: the adapter, or all weights of a model without one.
func LoadToken(ctx context.Context, client *hub.Client, model, adapter, dtype string, trainable bool) (*CausalLM, error) {
	found, err := client.Model(ctx, model, hub.Weights)
	if err != nil {
		return nil, err
	}
	c := TokenConfig{Dir: found.Dir, BaseModel: found.Name, Revision: found.Commit, DType: dtype}
	own := false // the adapter is model's own
	if _, err := os.Stat(filepath.Join(found.Dir, lora.ConfigFile)); err == nil {
		if adapter != "" {
			return nil, fmt.Errorf("%s is an adapter itself; give its base model, or leave the other adapter out", model)
		}
		adapter, own = found.Dir, true
	}
	switch {
	case adapter == "":
		c.Full = trainable
		return NewToken(c)
	case !own:
		found, err := client.Model(ctx, adapter, hub.Weights)
		if err != nil {
			return nil, fmt.Errorf("adapter: %w", err)
		}
		adapter = found.Dir
	}
	config, pairs, extra, err := lora.Load(adapter)
	if err != nil {
		return nil, err
	}
	if own {
		base, err := baseModel(ctx, client, adapter, config)
		if err != nil {
			return nil, err
		}
		c.Dir, c.BaseModel = base.Dir, base.Name
	}
	modelConfig, err := transformers.LoadCausalConfig(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := FitsLanguageModel(modelConfig, config, pairs, extra); err != nil {
		return nil, fmt.Errorf("%s does not fit %s: %w", adapter, c.Dir, err)
	}
	if whole := mergedOnly(config, extra); whole != "" {
		if trainable {
			return nil, fmt.Errorf("%s has %s: it can be used and merged but not be trained further; write a full model of it with rltrain merge, and train that", adapter, whole)
		}
		if c.merged, err = changes(pairs, extra); err != nil {
			return nil, fmt.Errorf("%s: %w", adapter, err)
		}
		return NewToken(c)
	}
	p, err := NewToken(c)
	if err != nil {
		return nil, err
	}
	p.dir, p.adapter.config, p.adapter.frozen = adapter, config, !trainable
	if err := p.adapter.attach(p.model.Model, p.model.Config.Linears(), pairs); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// FitsLanguageModel checks that an adapter, as lora.Load reads it, is one for the model. Errors name what differs.
func FitsLanguageModel(model *transformers.Config, c lora.Config, pairs []lora.Pair, extra map[string]safetensors.Tensor) error {
	if c.TaskType != "" && c.TaskType != lora.CausalLM {
		return fmt.Errorf("task_type is %s: it is no adapter of a language model, which has %s", c.TaskType, lora.CausalLM)
	}
	shapes := map[string][2]int{}
	for _, linear := range model.Linears() {
		shapes[linear.Name] = [2]int{linear.Out, linear.In}
	}
	if err := c.Fits(pairs, shapes); err != nil {
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
			return fmt.Errorf("modules_to_save: the adapter has tensor %.120q, the model has none of that name", name)
		case spec.Transposed:
			return fmt.Errorf("modules_to_save: tensor %s is a weight of a Conv1D, which is not supported as a whole", name)
		case !slices.Equal(spec.Shape, extra[name].Shape):
			return fmt.Errorf("modules_to_save: tensor %s has shape %v, the model's has %v: where the vocabulary was resized for the adapter, the model has to be too", name, extra[name].Shape, spec.Shape)
		}
	}
	return nil
}

// mergedOnly names what of an adapter is merged into the weights as it is loaded, "" for nothing.
func mergedOnly(c lora.Config, extra map[string]safetensors.Tensor) string {
	switch {
	case c.DoRA:
		return "magnitudes of DoRA"
	case len(extra) > 0:
		return "whole modules (modules_to_save: " + strings.Join(c.ModulesToSave, ", ") + ")"
	}
	return ""
}

// changes are those that an adapter makes to a model's weights, by their names.
func changes(pairs []lora.Pair, extra map[string]safetensors.Tensor) (map[string]func([]float32), error) {
	all := map[string]func([]float32){}
	for _, pair := range pairs {
		all[pair.Module+".weight"] = pair.MergeInto
	}
	for name, tensor := range extra {
		data, err := tensor.Float32s()
		if err != nil {
			return nil, err
		}
		all[name] = func(weight []float32) { copy(weight, data) }
	}
	return all, nil
}

// SaveWeights writes the adapter as PEFT does, or the whole model, and the value head where there is one.
func (p *CausalLM) SaveWeights(dir string) (err error) {
	if p.model.Trainable {
		err = p.model.Save(dir, transformers.SaveOptions{})
	} else {
		err = p.adapter.save(dir, nil)
	}
	if err != nil {
		return err
	}
	return p.value.save(dir)
}

// LoadWeights puts back what SaveWeights wrote.
func (p *CausalLM) LoadWeights(dir string) error {
	if p.model.Trainable {
		if err := p.model.LoadWeights(dir); err != nil {
			return err
		}
	} else if _, err := p.adapter.load(dir); err != nil {
		return err
	}
	return p.value.load(dir)
}

// Save writes a folder that LoadToken, PEFT or transformers read: weights, tokenizer and templates,
// and of a whole model its configuration.
func (p *CausalLM) Save(dir string) error {
	err := p.SaveWeights(dir)
	if err == nil && !p.model.Trainable {
		err = transformers.CopyExtras(dir, p.model.Dir)
	}
	if err != nil {
		return fmt.Errorf("saving the policy: %w", err)
	}
	return nil
}

// Merge writes dir, which must be new or empty: the policy as one full model in dtype ("" = as the base
// model is stored), every adapted weight W replaced by W + scale·B·A (Hu et al. 2021, section 4.1; with DoRA
// as lora.Pair.MergeInto says) and whole modules by the adapter's. The folder appears whole or not at all.
func (p *CausalLM) Merge(dir, dtype string) error {
	if len(p.adapter.layers) == 0 && p.merged == nil {
		return fmt.Errorf("merging: %s is a full model already", p.model.Dir)
	}
	o := transformers.SaveOptions{DType: dtype, Change: map[string]func([]float32){}}
	maps.Copy(o.Change, p.merged)
	for _, l := range p.adapter.layers {
		pair, err := l.pair()
		if err != nil {
			return fmt.Errorf("merging: %w", err)
		}
		o.Change[l.Name+".weight"] = pair.MergeInto
	}
	if err := outfile.Folder(dir, func(dir string) error { return p.model.Save(dir, o) }); err != nil {
		return fmt.Errorf("merging: %w", err)
	}
	return nil
}
