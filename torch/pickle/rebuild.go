package pickle

import (
	"errors"
	"fmt"
	"slices"
)

// maxDims bounds the dimensions of a tensor; PyTorch has the same limit.
const maxDims = 64

// reduce calls one of the three functions that a state dict uses.
func (m *machine) reduce() error {
	values, err := m.pop(2)
	if err != nil {
		return err
	}
	args, ok := values[1].(tuple)
	if !ok {
		return fmt.Errorf("call with %s, want a tuple", kind(values[1]))
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
		return fmt.Errorf("%s needs a tensor and two more arguments", rebuildParameter)
	}
	return fmt.Errorf("call of %s is not allowed", kind(values[0]))
}

// persistent pushes the storage named by ("storage", type, key, device, numel).
func (m *machine) persistent() error {
	values, err := m.pop(1)
	if err != nil {
		return err
	}
	id, ok := values[0].(tuple)
	if !ok || len(id) != 5 || id[0] != "storage" {
		return fmt.Errorf("persistent id is %s, want the five values of a storage", kind(values[0]))
	}
	dtype, ok1 := id[1].(storageType)
	key, ok2 := id[2].(string)
	numel, ok3 := id[4].(int64)
	if !ok1 || !ok2 || !ok3 || numel < 0 {
		return errors.New("a storage needs a type, a key and a number of elements")
	}
	return m.push(storage{dtype, key, numel})
}

// newView is _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]).
func newView(args tuple) (*view, error) {
	if len(args) < 6 || len(args) > 7 {
		return nil, fmt.Errorf("tensor with %d arguments, want 6 or 7", len(args))
	}
	s, ok := args[0].(storage)
	if !ok {
		return nil, fmt.Errorf("tensor in %s, want a storage", kind(args[0]))
	}
	offset, ok := args[1].(int64)
	if !ok || offset < 0 || offset > s.numel {
		return nil, fmt.Errorf("tensor starts at %v in a storage of %d elements", args[1], s.numel)
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
		return nil, fmt.Errorf("tensor of %d dimensions has %d strides", len(shape), len(strides))
	}
	v := &view{s, offset, shape, strides}
	return v, v.check()
}

// sizes converts a tuple of non-negative numbers.
func sizes(v any) ([]int64, error) {
	values, ok := v.(tuple)
	if !ok || len(values) > maxDims {
		return nil, fmt.Errorf("shape or strides are %s, want a tuple of at most %d numbers", kind(v), maxDims)
	}
	list := make([]int64, len(values))
	for i, x := range values {
		n, ok := x.(int64)
		if !ok || n < 0 {
			return nil, fmt.Errorf("shape or strides contain %v, want non-negative integers", x)
		}
		list[i] = n
	}
	return list, nil
}

// check verifies that the tensor lies within its storage and has no more elements than it. Otherwise reading it could take
// more memory than the file is long.
func (v *view) check() error {
	for _, n := range v.shape {
		if n == 0 {
			return nil // nothing to read
		}
	}
	numel, last := int64(1), v.offset
	for i, n := range v.shape {
		if n > v.storage.numel/numel {
			return fmt.Errorf("tensor of shape %v has more elements than its storage (%d)", v.shape, v.storage.numel)
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
	return fmt.Errorf("tensor of shape %v and strides %v at offset %d exceeds its storage of %d elements", v.shape, v.strides, v.offset, v.storage.numel)
}

// dense reports whether the elements are contiguous and row-major.
func (v *view) dense() bool {
	if slices.Contains(v.shape, 0) {
		return true // any strides are valid
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
