package policy

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// valueFile holds v_head.summary.weight [1, H] and v_head.summary.bias [1], as TRL names them.
const valueFile = "value_head.safetensors"

// valueHead is a linear layer from a state of width H to a value.
type valueHead struct {
	weight, bias *torch.Var // [1, H], [1]
}

// of is V of the states x [M, H], [M]. Its gradient ends here unless it is to go through: the first errors of a head that
// starts at zero would otherwise drown what the policy has to learn.
func (h *valueHead) of(s *torch.Scope, x torch.Tensor, pass Pass) torch.Tensor {
	if !pass.EndToEnd {
		x = s.Detach(x)
	}
	return s.Squeeze(s.Linear(x, h.weight.T(), h.bias.T()))
}

// newValueHead makes the head in dir, or a head of zeros where dir has none; dir may be "".
func newValueHead(dir string, width int64) (*valueHead, error) {
	weight, bias, err := readValueHead(dir, width)
	if err != nil {
		return nil, fmt.Errorf("value head: %w", err)
	}
	h := &valueHead{}
	if h.weight, err = torch.Parameter(weight, 1, width); err != nil {
		return nil, fmt.Errorf("value head: %w", err)
	}
	if h.bias, err = torch.Parameter(bias, 1); err != nil {
		h.weight.Close()
		return nil, fmt.Errorf("value head: %w", err)
	}
	return h, nil
}

func readValueHead(dir string, width int64) (weight, bias []float32, err error) {
	path := filepath.Join(dir, valueFile)
	if _, err := os.Stat(path); dir == "" || err != nil {
		return make([]float32, width), make([]float32, 1), nil
	}
	return readPair(path, "v_head.summary.weight", "v_head.summary.bias", 1, width)
}

// On a nil head the methods do nothing.

// size is the number of weights on a state of some width.
func (h *valueHead) size(width int) int64 {
	if h == nil {
		return 0
	}
	return int64(width + 1)
}

func (h *valueHead) params() []*torch.Var {
	if h == nil {
		return nil
	}
	return []*torch.Var{h.weight, h.bias}
}

func (h *valueHead) groups() []Group {
	if h == nil {
		return nil
	}
	return []Group{{Role: Value, Params: h.params()}}
}

func (h *valueHead) save(dir string) error {
	if h == nil {
		return nil
	}
	weight, err := h.weight.Read()
	if err != nil {
		return err
	}
	bias, err := h.bias.Read()
	if err != nil {
		return err
	}
	return safetensors.Write(filepath.Join(dir, valueFile), []safetensors.Tensor{
		safetensors.FromFloat32s("v_head.summary.weight", []int64{1, int64(len(weight))}, weight),
		safetensors.FromFloat32s("v_head.summary.bias", []int64{1}, bias),
	}, nil)
}

// load puts back what save wrote.
func (h *valueHead) load(dir string) error {
	if h == nil {
		return nil
	}
	shape, err := h.weight.Shape()
	if err != nil {
		return err
	}
	weight, bias, err := readValueHead(dir, shape[1])
	if err != nil {
		return err
	}
	if err := h.weight.Write(weight); err != nil {
		return fmt.Errorf("%s: value head: %w", dir, err)
	}
	return h.bias.Write(bias)
}

func (h *valueHead) close() {
	if h != nil {
		torch.CloseAll(h.weight, h.bias)
	}
}

// readPair reads a linear layer's weight [out, in] and bias [out] from a file.
func readPair(path, weightName, biasName string, out, in int64) (weight, bias []float32, err error) {
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if weight, err = file.Float32s(weightName); err != nil {
		return nil, nil, err
	}
	if bias, err = file.Float32s(biasName); err != nil {
		return nil, nil, err
	}
	if int64(len(weight)) != out*in || int64(len(bias)) != out {
		return nil, nil, fmt.Errorf("%s: a head of %d and %d values, want [%d %d] and [%d]", path, len(weight), len(bias), out, in, out)
	}
	return weight, bias, nil
}
