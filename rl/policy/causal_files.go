package policy

import (
	"cmp"
	"context"
	"fmt"
	"maps"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/gguf/convert"
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
	if files.Exist(found.Dir, lora.ConfigFile) {
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
		base, err := saved.base(ctx, client, hub.Weights)
		if err != nil {
			return nil, err
		}
		c.Dir, c.BaseModel = base.Dir, base.Name
	}
	note := ""
	modelConfig, err := transformers.LoadCausalConfig(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := saved.fitsLanguageModel(modelConfig, c.Dir); err != nil {
		return nil, err
	}
	only := saved.MergedOnly()
	if trainable && saved.trainable() {
		only, c.ModulesToSave = "", saved.Config.ModulesToSave
	}
	if only != "" {
		if trainable {
			return nil, fmt.Errorf("%s has %s and cannot be trained further; write a full model with rltrain merge and train that", adapter, only)
		}
		note = fmt.Sprintf("%s has %s, merged into the weights on loading: it can be used, not trained further", adapter, only)
		if c.merged, err = saved.changes(modelConfig); err != nil {
			return nil, err
		}
	}
	p, err := NewCausalLM(c)
	if err != nil {
		return nil, err
	}
	p.note = note
	if err = p.readText(adapter); err == nil && c.merged == nil {
		p.source, p.adapter.frozen = adapter, !trainable
		err = cmp.Or(p.attach(saved.Config, saved.Pairs), p.adapter.writeFull(adapter, saved.Extra))
		for name := range saved.Extra {
			err = cmp.Or(err, fmt.Errorf("%s has tensor %s besides modules_to_save and cannot be trained further; write a full model with rltrain merge and train that", adapter, name))
		}
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Note says what loading made of an adapter that cannot be kept beside the weights, "" for nothing.
func (p *CausalLM) Note() string { return p.note }

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
	if err == nil && p.model.Trainable {
		err = p.saveText(dir)
	} else if err == nil {
		err = p.SaveText(dir)
	}
	if err != nil {
		return fmt.Errorf("saving the policy: %w", err)
	}
	return nil
}

// SaveText writes what an adapter's folder has besides the adapter: tokenizer, templates and ends.
func (p *CausalLM) SaveText(dir string) error {
	if err := transformers.CopyExtras(dir, p.dir); err != nil {
		return err
	}
	return p.saveText(dir)
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
	if files.Exist(dir, weights) {
		return nil
	}
	err := outfile.Folder(dir, func(dir string) error { return write(dir, layers, hidden, seed) })
	if err != nil && files.Exist(dir, weights) { // by another run meanwhile
		return nil
	}
	return err
}

// mergedChanges are what the adapter, if there is one, makes of the model's weights.
func (p *CausalLM) mergedChanges() (map[string]func([]float32), error) {
	changes, err := p.adapter.changes(p.config)
	if err == nil {
		maps.Copy(changes, p.merged)
	}
	return changes, err
}

// SaveFull writes dir, which must be new or empty, as a model folder in the Hugging Face layout: the weights in dtype, ""
// as they are stored, with the adapter merged where there is one.
func (p *CausalLM) SaveFull(dir, dtype string) error {
	changes, err := p.mergedChanges()
	if err == nil {
		err = outfile.Folder(dir, func(dir string) error {
			if err := p.model.Save(dir, transformers.SaveOptions{DType: dtype, Change: changes}); err != nil {
				return err
			}
			if err := copyDecision(dir, p.source, p.dir); err != nil {
				return err
			}
			return p.saveText(dir)
		})
	}
	if err != nil {
		return fmt.Errorf("writing the model: %w", err)
	}
	return nil
}

// SaveGGUF writes the model as one GGUF file with matrices of type kind and the adapter merged where there is one. name is
// general.name, for people.
func (p *CausalLM) SaveGGUF(path, name string, kind gguf.Type) error {
	changes, err := p.mergedChanges()
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return p.model.SaveGGUF(path, transformers.GGUFOptions{Type: kind, Name: name, Change: changes, Set: p.ggufText()})
}

// SaveAdapterGGUF writes the adapter alone, for llama.cpp's --lora. Scales that differ between layers are multiplied into
// B, as a file has one alpha.
func (p *CausalLM) SaveAdapterGGUF(path, name string) error {
	if len(p.adapter.layers) == 0 || p.adapter.config.DoRA || len(p.adapter.config.TargetParameters) > 0 {
		return fmt.Errorf("writing %s: the model has no low-rank adapter of linear layers alone, without magnitudes; export the merged model instead", path)
	}
	config := p.model.Config
	e, err := convert.Export(config.ModelType)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	first := p.adapter.layers[0]
	alpha := first.scale * float64(first.r)
	var tensors []gguf.Source
	add := func(name string, rows, columns int, values []float32) {
		tensors = append(tensors, gguf.Source{
			Name: name, Type: gguf.F32, Shape: []int64{int64(rows), int64(columns)},
			Data: func() ([]byte, error) { return gguf.F32.Quantize(values) },
		})
	}
	for _, l := range p.adapter.layers {
		pair, err := l.pair()
		if err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
		tensor, heads, _, err := e.Tensor(l.Name+".weight", config.NumAttentionHeads, max(config.NumKeyValueHeads, 1))
		if err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
		if heads > 0 {
			convert.Interleave(pair.B, heads, pair.R)
		}
		if factor := pair.Scale * float64(pair.R) / alpha; factor != 1 {
			for i := range pair.B {
				pair.B[i] = float32(float64(pair.B[i]) * factor)
			}
		}
		add(tensor+".lora_a", pair.R, pair.In, pair.A)
		add(tensor+".lora_b", pair.Out, pair.R, pair.B)
	}
	return gguf.Write(path, []gguf.Pair{
		{Key: "general.architecture", Value: e.Name}, {Key: "general.type", Value: "adapter"}, {Key: "adapter.type", Value: "lora"},
		{Key: "general.name", Value: name}, {Key: "adapter.lora.alpha", Value: float32(alpha)}, {Key: "general.file_type", Value: uint32(0)},
	}, tensors)
}
