package pickle

import (
	"errors"
	"fmt"
	"slices"
)

// maxDims bounds the dimensions of a tensor; PyTorch's own limit is 64.
const maxDims = 64

// reduce calls one of the three functions that a state dict needs.
func (m *machine) reduce() error {
	values, err := m.pop(2)
	if err != nil {
		return err
	}
	args, ok := values[1].(tuple)
	if !ok {
		return fmt.Errorf("a call with %s, want a tuple", kind(values[1]))
	}
	switch values[0] {
	case orderedDict:
		if len(args) > 0 {
			return fmt.Errorf("%s with %d arguments, want none", orderedDict, len(args))
		}
		return m.push(&dict{})
	case rebuildTensor:
		v, err := newView(args)
		if err != nil {
			return err
		}
		return m.push(v)
	case rebuildParameter:
		if len(args) == 3 {
			if v, ok := args[0].(*view); ok {
				return m.push(v)
			}
		}
		return fmt.Errorf("%s wants a tensor and two more arguments", rebuildParameter)
	}
	return fmt.Errorf("a call of %s", kind(values[0]))
}

// persistent pushes the storage that ("storage", type, key, device, numel) names.
func (m *machine) persistent() error {
	values, err := m.pop(1)
	if err != nil {
		return err
	}
	id, ok := values[0].(tuple)
	if !ok || len(id) != 5 || id[0] != "storage" {
		return fmt.Errorf("a persistent id is %s, want a storage's five values", kind(values[0]))
	}
	dtype, ok1 := id[1].(storageType)
	key, ok2 := id[2].(string)
	numel, ok3 := id[4].(int64)
	if !ok1 || !ok2 || !ok3 || numel < 0 {
		return errors.New("a storage wants a type, a key and a number of elements")
	}
	return m.push(storage{dtype, key, numel})
}

// newView is _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]).
func newView(args tuple) (*view, error) {
	if len(args) < 6 || len(args) > 7 {
		return nil, fmt.Errorf("a tensor of %d arguments, want 6 or 7", len(args))
	}
	s, ok := args[0].(storage)
	if !ok {
		return nil, fmt.Errorf("a tensor in %s, want a storage", kind(args[0]))
	}
	offset, ok := args[1].(int64)
	if !ok || offset < 0 || offset > s.numel {
		return nil, fmt.Errorf("a tensor begins at %v of a storage of %d elements", args[1], s.numel)
	}
	shape, err := sizes(args[2])
	if err != nil {
		return nil, err
	}
	strides, err := sizes(args[3])
	if err != nil {
		return nil, err
	}
	if len(shape) != len(strides) {
		return nil, fmt.Errorf("a tensor of %d dimensions has %d strides", len(shape), len(strides))
	}
	v := &view{s, offset, shape, strides}
	return v, v.check()
}

// sizes is a tuple of numbers from 0.
func sizes(v any) ([]int64, error) {
	values, ok := v.(tuple)
	if !ok || len(values) > maxDims {
		return nil, fmt.Errorf("a shape or its strides are %s, want a tuple of at most %d numbers", kind(v), maxDims)
	}
	list := make([]int64, len(values))
	for i, x := range values {
		n, ok := x.(int64)
		if !ok || n < 0 {
			return nil, fmt.Errorf("%v in a shape or its strides is not a number from 0", x)
		}
		list[i] = n
	}
	return list, nil
}

// check sees to it that the tensor lies within its storage and has no more elements: what reads it would
// take more memory than the file is long else.
func (v *view) check() error {
	for _, n := range v.shape {
		if n == 0 {
			return nil // nothing to read
		}
	}
	numel, last := int64(1), v.offset
	for i, n := range v.shape {
		if n > v.storage.numel/numel {
			return fmt.Errorf("a tensor of shape %v has more elements than its storage, %d", v.shape, v.storage.numel)
		}
		numel *= n
		if n > 1 && v.strides[i] > v.storage.numel/(n-1) {
			return v.outside()
		}
		if last += (n - 1) * v.strides[i]; last >= v.storage.numel {
			return v.outside()
		}
	}
	if last >= v.storage.numel {
		return v.outside()
	}
	return nil
}

func (v *view) outside() error {
	return fmt.Errorf("a tensor of shape %v and strides %v at %d leaves its storage of %d elements", v.shape, v.strides, v.offset, v.storage.numel)
}

// dense reports that the elements lie one after another, the last dimension fastest.
func (v *view) dense() bool {
	if slices.Contains(v.shape, 0) {
		return true // its strides may be anything
	}
	next := int64(1)
	for i := len(v.shape) - 1; i >= 0; i-- {
		if v.shape[i] > 1 && v.strides[i] != next {
			return false
		}
		next *= v.shape[i]
	}
	return true
}
