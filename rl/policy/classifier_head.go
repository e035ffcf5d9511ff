package policy

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// classHead is the layer, or the two layers, between a state [H] and the logits of C labels. The zero value has no weights.
type classHead struct {
	out   transformers.Dense // [C, H], [C]
	dense transformers.Dense // [H, H], [H]: the layer before; empty where the head has one layer
	parts []headPart         // what is trained, in the order of files
}

// headPart is a tensor of a head.
type headPart struct {
	name string // in files
	dims []int64
	v    **torch.Var
}

func (h headPart) size() int64 {
	n := int64(1)
	for _, d := range h.dims {
		n *= d
	}
	return n
}

// layer adds a layer's weight [out, in] and bias [out].
func (h *classHead) layer(name string, out, in int64, l *transformers.Dense) {
	h.parts = append(h.parts, headPart{name + ".weight", []int64{out, in}, &l.Weight}, headPart{name + ".bias", []int64{out}, &l.Bias})
}

// set makes the head's parameters, from values in the order of the parts.
func (h *classHead) set(values [][]float32) (err error) {
	for i, part := range h.parts {
		if *part.v, err = torch.Parameter(values[i], part.dims...); err != nil {
			return fmt.Errorf("policy: head: %w", err)
		}
	}
	if h.out.Weight != nil && h.out.Bias == nil { // a score layer has no bias
		classes := h.parts[0].dims[0]
		if h.out.Bias, err = torch.Constant(make([]float32, classes), classes); err != nil {
			return fmt.Errorf("policy: head: %w", err)
		}
	}
	return nil
}

// uniform samples values for the parts as torch.nn.Linear does: uniform in ±1/√H.
func (h *classHead) uniform(rng *rand.Rand, width int) [][]float32 {
	bound := 1 / math.Sqrt(float64(width))
	return h.sampled(func() float64 { return (2*rng.Float64() - 1) * bound })
}

func (h *classHead) sampled(sample func() float64) [][]float32 {
	var values [][]float32
	for _, part := range h.parts {
		data := make([]float32, part.size())
		for i := range data {
			data[i] = float32(sample())
		}
		values = append(values, data)
	}
	return values
}

// write puts values in the order of the parts into a head that is set.
func (h *classHead) write(values [][]float32) error {
	for i, part := range h.parts {
		if err := (*part.v).Write(values[i]); err != nil {
			return fmt.Errorf("head: %w", err)
		}
	}
	return nil
}

// tensors are the parts as files hold them.
func (h *classHead) tensors() ([]safetensors.Tensor, error) {
	var tensors []safetensors.Tensor
	for _, part := range h.parts {
		data, err := (*part.v).Read()
		if err != nil {
			return nil, err
		}
		tensors = append(tensors, safetensors.FromFloat32s(part.name, part.dims, data))
	}
	return tensors, nil
}

// from finds the values of the parts among tensors.
func (h *classHead) from(tensors map[string]safetensors.Tensor) ([][]float32, error) {
	used := map[string]bool{}
	values, err := h.values(func(name string) ([]float32, error) {
		used[name] = true
		t, ok := tensors[name]
		if !ok {
			return nil, fmt.Errorf("tensor %s is missing", name)
		}
		return t.Float32s()
	})
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		if err == nil && !used[name] {
			return nil, fmt.Errorf("tensor %.120q is not of the classification head", name)
		}
	}
	return values, err
}

// readFile reads the values of the parts from a file.
func (h *classHead) readFile(path string) ([][]float32, error) {
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	values, err := h.values(file.Float32s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return values, nil
}

func (h *classHead) values(read func(name string) ([]float32, error)) (values [][]float32, err error) {
	for _, part := range h.parts {
		data, err := read(part.name)
		if err == nil && int64(len(data)) != part.size() {
			err = fmt.Errorf("tensor %s has %d values, want shape %v", part.name, len(data), part.dims)
		}
		if err != nil {
			return nil, err
		}
		values = append(values, data)
	}
	return values, nil
}

func (h *classHead) params() []*torch.Var {
	var params []*torch.Var
	for _, part := range h.parts {
		params = append(params, *part.v)
	}
	return params
}

// groups are those of the optimiser. Biases do not decay.
func (h *classHead) groups() []Group {
	var groups []Group
	for _, part := range h.parts {
		groups = append(groups, Group{Role: Head, Params: []*torch.Var{*part.v}, Decay: len(part.dims) > 1})
	}
	return groups
}

func (h *classHead) size() (n int64) {
	for _, part := range h.parts {
		n += part.size()
	}
	return n
}

// logits are those of states z [S, H], [S, C].
func (h *classHead) logits(s *torch.Scope, z torch.Tensor) torch.Tensor {
	return s.Linear(z, h.out.Weight.T(), h.out.Bias.T())
}

func (h *classHead) close() {
	h.out.Close()
	h.dense.Close()
}
