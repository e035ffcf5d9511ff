package policy

import (
	"context"
	"fmt"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
)

// LoadCausalLM loads a language model, or an adapter with the base model that it names. model and adapter are folders or
// names as hub.Client.Model takes them; adapter, unless "", is an adapter for model. With trainable the policy can train what
// model has: the adapter, or all weights of a model without one.
func LoadCausalLM(ctx context.Context, client *hub.Client, model, adapter, dtype string, trainable bool) (*CausalLM, error) {
	found, err := client.Model(ctx, model, hub.Weights)
	if err != nil {
		return nil, err
	}
	c := Config{Dir: found.Dir, BaseModel: found.Name, Revision: found.Commit, DType: dtype}
	own := false // the adapter is model's own
	if has(found.Dir, lora.ConfigFile) {
		if adapter != "" {
			return nil, fmt.Errorf("%s is an adapter itself; give its base model, or leave out the other adapter", model)
		}
		adapter, own = found.Dir, true
	}
	switch {
	case adapter == "":
		c.Full = trainable
		return NewCausalLM(c)
	case !own:
		found, err := client.Model(ctx, adapter, hub.Weights)
		if err != nil {
			return nil, fmt.Errorf("adapter: %w", err)
		}
		adapter = found.Dir
	}
	saved, err := readAdapter(adapter)
	if err != nil {
		return nil, err
	}
	if own {
		base, err := saved.base(ctx, client)
		if err != nil {
			return nil, err
		}
		c.Dir, c.BaseModel = base.Dir, base.Name
	}
	modelConfig, err := transformers.LoadCausalConfig(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := saved.fitsLanguageModel(modelConfig, c.Dir); err != nil {
		return nil, err
	}
	if only := saved.mergedOnly(); only != "" {
		if trainable {
			return nil, fmt.Errorf("%s has %s and cannot be trained further; write a full model with rltrain merge and train that", adapter, only)
		}
		if c.merged, err = saved.changes(); err != nil {
			return nil, err
		}
		return NewCausalLM(c)
	}
	p, err := NewCausalLM(c)
	if err != nil {
		return nil, err
	}
	p.source, p.adapter.frozen = adapter, !trainable
	if err := p.attach(saved.config, saved.pairs); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// SaveWeights implements run.Weights: the adapter as PEFT writes it, or the full model, and the value head.
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

// LoadWeights implements run.Weights: it reads what SaveWeights wrote.
func (p *CausalLM) LoadWeights(dir string) error {
	if p.model.Trainable {
		if err := p.model.LoadWeights(dir); err != nil {
			return err
		}
	} else if _, err := p.adapter.load(dir, false); err != nil {
		return err
	}
	return p.value.load(dir)
}

// Save writes a folder that LoadCausalLM, PEFT or transformers read: weights, tokenizer and templates, and the configuration
// of a full model.
func (p *CausalLM) Save(dir string) error {
	err := p.SaveWeights(dir)
	if err == nil && !p.model.Trainable {
		err = transformers.CopyExtras(dir, p.dir)
	}
	if err != nil {
		return fmt.Errorf("saving the policy: %w", err)
	}
	return nil
}

// Quantized are the types of the base model's quantized weights, such as "nf4" or "q4_k"; none where it has none.
func (p *CausalLM) Quantized() (types []string) {
	for _, t := range p.model.Quantised() {
		types = append(types, string(t))
	}
	return types
}

// Merge writes dir, which must be new or empty: the policy as one full model in dtype ("" = as the base
// model is stored), every adapted weight W replaced by W + scale·B·A (Hu et al. 2021, section 4.1; with DoRA
// as lora.Pair.MergeInto says) and full modules by the adapter's. Quantized weights are written dequantized. The folder
// appears complete or not at all.
func (p *CausalLM) Merge(dir, dtype string) error {
	if len(p.adapter.layers) == 0 && p.merged == nil {
		return fmt.Errorf("merging: %s is a full model already", p.dir)
	}
	return p.SaveFull(dir, dtype)
}

// TinyModel makes dir the folder of a small character-level language model of random weights, unless it exists.
func TinyModel(dir string, layers, hidden int, seed uint64) error {
	return tinyModel(dir, layers, hidden, seed, transformers.WriteTiny)
}

// TinyChatModel is TinyModel with a chat template.
func TinyChatModel(dir string, layers, hidden int, seed uint64) error {
	return tinyModel(dir, layers, hidden, seed, transformers.WriteTinyChat)
}

func tinyModel(dir string, layers, hidden int, seed uint64, write func(dir string, layers, hidden int, seed uint64) error) error {
	const weights = "model.safetensors"
	if has(dir, weights) {
		return nil
	}
	err := outfile.Folder(dir, func(dir string) error { return write(dir, layers, hidden, seed) })
	if err != nil && has(dir, weights) { // by another run meanwhile
		return nil
	}
	return err
}
