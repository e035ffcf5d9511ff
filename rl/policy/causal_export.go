package policy

import (
	"fmt"
	"maps"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/gguf/convert"
	"github.com/rltrain/rltrain/torch/transformers"
)

// mergedChanges are what the adapter, if there is one, makes of the model's weights.
func (p *CausalLM) mergedChanges() (map[string]func([]float32), error) {
	changes, err := p.adapter.changes()
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
			return p.model.Save(dir, transformers.SaveOptions{DType: dtype, Change: changes})
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
	return p.model.SaveGGUF(path, transformers.GGUFOptions{Type: kind, Name: name, Change: changes})
}

// SaveAdapterGGUF writes the adapter alone, for llama.cpp's --lora. Scales that differ between layers are multiplied into
// B, as a file has one alpha.
func (p *CausalLM) SaveAdapterGGUF(path, name string) error {
	if len(p.adapter.layers) == 0 {
		return fmt.Errorf("writing %s: the model has no low-rank adapter; export the merged model instead", path)
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
