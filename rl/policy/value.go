package policy

import (
	"fmt"
	"path/filepath"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// valueFile holds v_head.summary.weight [1, H] and v_head.summary.bias [1], as TRL names them.
const valueFile = "value_head.safetensors"

// valueHead is a linear layer from a state of width H to a value. On a nil head the methods do nothing.
type valueHead struct{ classHead }

// newValueHead makes the head in dir, or a head of zeros where dir has none; dir may be "".
func newValueHead(dir string, width int64) (*valueHead, error) {
	h := &valueHead{}
	h.layer("v_head.summary", 1, width, &h.out)
	values, err := h.read(dir)
	if err == nil {
		err = h.set(values)
	}
	if err != nil {
		h.close()
		return nil, fmt.Errorf("value head: %w", err)
	}
	return h, nil
}

// read reads the head in dir, zeros where dir has none.
func (h *valueHead) read(dir string) ([][]float32, error) {
	path := filepath.Join(dir, valueFile)
	if dir == "" || !files.Exist(path) {
		return h.sampled(func() float64 { return 0 }), nil
	}
	return h.readFile(path)
}

// of is V of the states x [M, H], [M]. Its gradient ends here unless pass.EndToEnd: the first errors of a head that starts at
// zero would otherwise drown what the policy has to learn.
func (h *valueHead) of(s *torch.Scope, x torch.Tensor, pass Pass) torch.Tensor {
	if !pass.EndToEnd {
		x = s.Detach(x)
	}
	return s.Squeeze(h.logits(s, x))
}

func (h *valueHead) size() int64 {
	if h == nil {
		return 0
	}
	return h.classHead.size()
}

func (h *valueHead) params() []*torch.Var {
	if h == nil {
		return nil
	}
	return h.classHead.params()
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
	tensors, err := h.tensors()
	if err != nil {
		return err
	}
	return safetensors.Write(filepath.Join(dir, valueFile), tensors, nil)
}

// load puts back what save wrote.
func (h *valueHead) load(dir string) error {
	if h == nil {
		return nil
	}
	values, err := h.read(dir)
	if err == nil {
		err = h.write(values)
	}
	if err != nil {
		return fmt.Errorf("%s: value %w", dir, err)
	}
	return nil
}

func (h *valueHead) close() {
	if h != nil {
		h.classHead.close()
	}
}
