// Package unpack reads the weights that quantisation packages store in a model folder: GPTQ, AWQ, FP8, MXFP4,
// compressed-tensors and int8 of bitsandbytes. Each such weight becomes one tensor with the values that the package multiplies by.
package unpack

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// Format is how the weights of a folder are stored.
type Format struct {
	// end of the name of the tensor that says that a weight is stored this way.
	end string
	// parts are the ends of the other tensors of a weight, those that may be missing with a ? at the end.
	parts []string
	// unused are the ends of tensors that change no weight: scales of activations and caches.
	unused []string
	// open reads what the parts' shapes tell.
	open func(p *parts) (*grid, error)
	// stack is in place of open where a tensor holds the weights of all experts.
	stack func(p *parts) (safetensors.Derived, error)
}

// methods are the known values of quant_method.
var methods = map[string]func(config json.RawMessage) ([]Format, error){
	"gptq":               gptq,
	"awq":                awq,
	"fp8":                fp8,
	"compressed-tensors": compressedTensors,
	"bitsandbytes":       bitsandbytes,
	"mxfp4":              mxfp4,
}

// Read reads quantization_config of config.json and refuses what is not known. NF4 of bitsandbytes has no format here: the
// core multiplies by it as it is stored.
func Read(config json.RawMessage) ([]Format, error) {
	var named struct {
		Method string `json:"quant_method"`
	}
	if err := json.Unmarshal(config, &named); err != nil {
		return nil, err
	}
	read := methods[named.Method]
	if read == nil {
		return nil, fmt.Errorf("quant_method %.40q is not supported, want one of %s; name the model that it was made of, with --model where an adapter names this one",
			named.Method, strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
	}
	return read(config)
}

// Weights puts one tensor in the place of each stored weight's parts. Its values are computed when it is read.
// Errors name the tensor.
func Weights(m *safetensors.Model, formats []Format) error {
	var derived []safetensors.Derived
	var hidden []string
	used := map[string]bool{}
	for _, f := range formats {
		for _, name := range m.Names() {
			base, ok := strings.CutSuffix(name, f.end)
			if !ok || !strings.HasSuffix(base, ".") || used[name] {
				continue
			}
			d, err := f.weight(m, base)
			if err != nil {
				return fmt.Errorf("tensor %s: %w", name, err)
			}
			derived = append(derived, d)
			for _, part := range d.Parts {
				used[part] = true
			}
		}
	}
	for _, f := range formats {
		for _, name := range m.Names() {
			if slices.ContainsFunc(f.unused, func(end string) bool { return strings.HasSuffix(name, "."+end) }) {
				hidden = append(hidden, name)
			}
		}
	}
	return m.Derive(derived, hidden)
}

// weight is the tensor in the place of one weight's.
func (f Format) weight(m *safetensors.Model, base string) (safetensors.Derived, error) {
	p := &parts{m: m, base: base}
	used := []string{base + f.end}
	for _, end := range f.parts {
		end, optional := strings.CutSuffix(end, "?")
		switch {
		case p.has(end):
			used = append(used, base+end)
		case !optional:
			return safetensors.Derived{}, fmt.Errorf("%s%s is missing", base, end)
		}
	}
	if f.stack != nil {
		d, err := f.stack(p)
		d.Parts = used
		return d, err
	}
	g, err := f.open(p)
	if err != nil {
		return safetensors.Derived{}, err
	}
	return safetensors.Derived{
		Name: base + "weight", DType: g.dtype, Shape: []int64{int64(g.out), int64(g.in)}, Parts: used,
		Values: func(raw func(string) (safetensors.Tensor, error)) ([]float32, error) {
			return g.values(&reader{base: base, raw: raw})
		},
	}, nil
}
