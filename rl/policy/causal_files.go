package policy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
)

// LoadCausalLM loads a language model, or an adapter together with the base model that it names. model is a
// folder or a name as hub.Client.Model takes it, and so is adapter, an adapter for model, where it is not "". With
// trainable the policy goes on training what model holds: the adapter, or all weights of a model without one.
func LoadCausalLM(ctx context.Context, client *hub.Client, model, adapter, dtype string, trainable bool) (*CausalLM, error) {
	found, err := client.Model(ctx, model, hub.Weights)
	if err != nil {
		return nil, err
	}
	c := Config{Dir: found.Dir, BaseModel: found.Name, Revision: found.Commit, DType: dtype}
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
	} else if _, err := p.adapter.load(dir, false); err != nil {
		return err
	}
	return p.value.load(dir)
}

// Save writes a folder that LoadCausalLM, PEFT or transformers read: weights, tokenizer and templates,
// and of a whole model its configuration.
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

// Merge writes dir, which must be new or empty: the policy as one full model in dtype ("" = as the base
// model is stored), every adapted weight W replaced by W + scale·B·A (Hu et al. 2021, section 4.1; with DoRA
// as lora.Pair.MergeInto says) and whole modules by the adapter's. The folder appears whole or not at all.
func (p *CausalLM) Merge(dir, dtype string) error {
	if len(p.adapter.layers) == 0 && p.merged == nil {
		return fmt.Errorf("merging: %s is a full model already", p.dir)
	}
	return p.SaveFull(dir, dtype)
}

// TinyModel makes dir the folder of a small character-level language model of random weights, unless an
// earlier run has made it.
func TinyModel(dir string, layers, hidden int, seed uint64) error {
	return tinyModel(dir, func(dir string) error { return transformers.WriteTiny(dir, layers, hidden, seed) })
}

// TinyChatModel is TinyModel with a chat template.
func TinyChatModel(dir string, layers, hidden int, seed uint64) error {
	return tinyModel(dir, func(dir string) error { return transformers.WriteTinyChat(dir, layers, hidden, seed) })
}

func tinyModel(dir string, write func(dir string) error) error {
	made := func() bool {
		_, err := os.Stat(filepath.Join(dir, "model.safetensors"))
		return err == nil
	}
	if made() {
		return nil
	}
	err := outfile.Folder(dir, write)
	if err != nil && made() { // by a run beside this one
		return nil
	}
	return err
}
