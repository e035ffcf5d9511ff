package safetensors

import (
	"fmt"
	"slices"
)

// Derive puts a tensor into the model whose values are computed from the tensors named by parts, which leave it. values is
// called each time that the tensor is read, with a function that reads a part; it returns the elements, row-major, which are
// rounded to dtype. Errors: the size of the shape.
func (m *Model) Derive(name string, dtype DType, shape []int64, parts []string, values func(raw func(part string) (Tensor, error)) ([]float32, error)) error {
	size, err := byteSize(dtype, shape)
	if err != nil {
		return err
	}
	type stored struct {
		file  *File
		entry Entry
	}
	raws := map[string]stored{}
	home := m.home[parts[0]]
	var names []string
	for _, n := range m.names {
		switch {
		case n == parts[0]:
			names = append(names, name)
		case !slices.Contains(parts, n):
			names = append(names, n)
		}
	}
	m.names = names
	for _, part := range parts {
		f := m.home[part]
		e, _ := f.Lookup(part)
		raws[part] = stored{f, e}
		delete(m.home, part)
	}
	e := Entry{Name: name, DType: dtype, Shape: shape, Size: size}
	e.Derived = func() ([]float32, error) {
		data, err := values(func(part string) (Tensor, error) {
			from := raws[part]
			data, err := from.file.bytes(from.entry)
			return Tensor{Name: part, DType: from.entry.DType, Shape: from.entry.Shape, Data: data}, err
		})
		if err != nil {
			return nil, fmt.Errorf("safetensors: %s: tensor %s: %w", home.Path(), quote(name), err)
		}
		return FromFloat32sAs(dtype, name, shape, data).Float32s()
	}
	home.index[name] = len(home.entries)
	home.entries = append(home.entries, e)
	m.home[name] = home
	return nil
}

// Hide removes a tensor from the model, not from its file.
func (m *Model) Hide(name string) {
	delete(m.home, name)
	m.names = slices.DeleteFunc(m.names, func(n string) bool { return n == name })
}
