package algo

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"rltrain/lora"
	"rltrain/torch/hub"
	"rltrain/torch/transformers"
)

// LoadTokenPolicy reads a model folder, or the folder of an adapter together with the base model that it
// names. adapter, where it is not "", is the folder of an adapter for the model in dir. The policy goes on
// training what the folder holds: the adapter, or with trainable all weights of a folder without one.
func LoadTokenPolicy(dir, adapter, dtype string, trainable bool) (*TokenPolicy, error) {
	c := TokenPolicyConfig{Dir: dir, DType: dtype}
	if _, err := os.Stat(filepath.Join(dir, lora.ConfigFile)); err == nil {
		if adapter != "" {
			return nil, fmt.Errorf("%s is the folder of an adapter itself; give its base model, or leave the other adapter out", dir)
		}
		adapter = dir
	}
	if adapter == "" {
		c.Full = trainable
		return NewTokenPolicy(c)
	}
	config, pairs, extra, err := lora.Load(adapter)
	if err != nil {
		return nil, err
	}
	if config.TaskType != lora.CausalLM {
		return nil, fmt.Errorf("%s: task_type is %s, not %s: it is not the adapter of a language model", filepath.Join(adapter, lora.ConfigFile), config.TaskType, lora.CausalLM)
	}
	if len(extra) > 0 {
		return nil, fmt.Errorf("%s: modules_to_save hold %s; only pairs of a language model's linear layers are read", adapter, slices.Sorted(maps.Keys(extra))[0])
	}
	if adapter == dir {
		if c.Dir, c.BaseModel, err = hub.Resolve(config.BaseModel); err != nil {
			return nil, fmt.Errorf("%s: base_model_name_or_path: %w", filepath.Join(adapter, lora.ConfigFile), err)
		}
	}
	p, err := NewTokenPolicy(c)
	if err != nil {
		return nil, err
	}
	p.adapter = config
	if err := p.fit(pairs); err != nil {
		p.Close()
		return nil, fmt.Errorf("%s does not fit %s: %w", adapter, c.Dir, err)
	}
	return p, nil
}

func (p *TokenPolicy) fit(pairs []lora.Pair) error {
	shapes := map[string][2]int{}
	for _, linear := range p.model.Config.Linears() {
		shapes[linear.Name] = [2]int{linear.Out, linear.In}
	}
	if err := p.adapter.Fits(pairs, shapes); err != nil {
		return err
	}
	return p.attach(pairs)
}

// saveWeights writes the adapter as PEFT does, or the whole model.
func (p *TokenPolicy) saveWeights(dir string) error {
	if p.model.Trainable {
		return p.model.Save(dir, transformers.SaveOptions{})
	}
	var pairs []lora.Pair
	for _, l := range p.layers {
		pair, err := l.pair()
		if err != nil {
			return err
		}
		pairs = append(pairs, pair)
	}
	return lora.Save(dir, p.adapter, pairs, nil)
}

// loadWeights puts back what saveWeights wrote.
func (p *TokenPolicy) loadWeights(dir string) error {
	if p.model.Trainable {
		return p.model.LoadWeights(dir)
	}
	_, pairs, _, err := lora.Load(dir)
	if err != nil {
		return err
	}
	if err := writePairs(p.layers, pairs); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// Save writes a folder that LoadTokenPolicy, PEFT or transformers read: weights, tokenizer and templates,
// and of a whole model its configuration.
func (p *TokenPolicy) Save(dir string) error {
	err := p.saveWeights(dir)
	if err == nil && !p.model.Trainable {
		err = transformers.CopyExtras(dir, p.model.Dir)
	}
	if err != nil {
		return fmt.Errorf("saving the policy: %w", err)
	}
	return nil
}

// Merge writes dir, which must be new or empty: the policy as one full model in dtype ("" = as the base
// model is stored), every adapted weight W replaced by W + scale·B·A (Hu et al. 2021, section 4.1). The
// folder appears whole or not at all.
func (p *TokenPolicy) Merge(dir, dtype string) error {
	if len(p.layers) == 0 {
		return fmt.Errorf("merging: %s is a full model already", p.model.Dir)
	}
	o := transformers.SaveOptions{DType: dtype, Merge: map[string]func([]float32){}}
	for _, l := range p.layers {
		pair, err := l.pair()
		if err != nil {
			return fmt.Errorf("merging: %w", err)
		}
		o.Merge[l.Name] = func(weight []float32) { pair.MergeInto(weight, p.adapter.Scale()) }
	}
	if err := writeFolder(dir, func(dir string) error { return p.model.Save(dir, o) }); err != nil {
		return fmt.Errorf("merging: %w", err)
	}
	return nil
}

// TinyModel makes dir the folder of a small character-level language model of random weights, unless an
// earlier run has made it.
func TinyModel(dir string, layers, hidden int, seed uint64) error {
	if _, err := os.Stat(filepath.Join(dir, "model.safetensors")); err == nil {
		return nil
	}
	return writeFolder(dir, func(dir string) error { return transformers.WriteTiny(dir, layers, hidden, seed) })
}
