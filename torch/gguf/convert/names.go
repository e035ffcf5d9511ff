package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An Exported is the GGUF side of a model type.
type Exported struct {
	Name string // of general.architecture
	architecture
	tensors map[string]string // by transformers' name within a layer
}

// exported are the architectures by the model_type of config.json.
var exported = func() map[string]Exported {
	all := map[string]Exported{}
	for name, a := range architectures {
		e := Exported{Name: name, architecture: a, tensors: map[string]string{}}
		for tensor, module := range a.modules {
			e.tensors[module] = tensor
		}
		all[a.modelType] = e
	}
	all["mistral"], all["gemma3"] = all["llama"], all["gemma3_text"]
	return all
}()

// Export finds the GGUF side of a model_type of config.json.
func Export(modelType string) (Exported, error) {
	e, ok := exported[modelType]
	if !ok {
		return e, fmt.Errorf("model_type %s has no form in GGUF here, only %s", modelType, strings.Join(slices.Sorted(maps.Keys(exported)), ", "))
	}
	return e, nil
}

// Tensor returns GGUF's name of a weight, given transformers' name in the base model: "layers.0.mlp.up_proj.weight",
// with any prefix. heads, if positive, is the number of heads to interleave its rows in; shift must be added to its
// values.
func (e Exported) Tensor(name string, heads, kvHeads int) (tensor string, interleaved int, shift float32, err error) {
	shift = 0
	if e.plusOne && strings.HasSuffix(name, "norm.weight") {
		shift = 1
	}
	for tensor, module := range topNames {
		if name == module || strings.HasSuffix(name, strings.TrimPrefix(module, "model")) {
			return tensor, 0, shift, nil
		}
	}
	if _, rest, ok := strings.Cut(name, "layers."); ok {
		layer, module, _ := strings.Cut(rest, ".")
		at := strings.LastIndexByte(module, '.')
		if at > 0 && e.tensors[module[:at]] != "" {
			tensor = "blk." + layer + "." + e.tensors[module[:at]] + module[at:]
			if e.interleaved {
				interleaved = interleavedHeads(tensor, heads, kvHeads)
			}
			return tensor, interleaved, shift, nil
		}
	}
	return "", 0, 0, fmt.Errorf("tensor %.120q has no name in GGUF", name)
}

// Interleave reorders rows of width values from transformers' order to GGUF's, in place.
func Interleave(values []float32, heads, width int) {
	rows := len(values) / width
	from := slices.Clone(values)
	for row := range rows {
		copy(values[Interleaved(row, rows, heads)*width:][:width], from[row*width:][:width])
	}
}
