package safetensors

import "fmt"

// Derived is a tensor whose values are computed from others.
type Derived struct {
	Name  string
	DType DType
	Shape []int64
	Parts []string // what it is computed from
	// Values is called each time that the tensor is read, with a function that reads a part. It returns the elements, row-major,
	// which are rounded to DType.
	Values func(raw func(part string) (Tensor, error)) ([]float32, error)
}

// Derive puts tensors into the model, each in the place of the first of its parts. Parts and hidden tensors leave it, though not
// their files. Errors: the size of a shape.
func (m *Model) Derive(all []Derived, hidden []string) error {
	gone, become := map[string]bool{}, map[string]string{} // by the old name
	for _, name := range hidden {
		gone[name] = true
	}
	entries, homes := make([]Entry, len(all)), make([]*File, len(all))
	for i, d := range all {
		home := m.home[d.Parts[0]]
		e, err := d.entry(m)
		if err != nil {
			return fmt.Errorf("safetensors: %s: tensor %s: %w", home.Path(), quote(d.Name), err)
		}
		entries[i], homes[i], become[d.Parts[0]] = e, home, d.Name
		for _, part := range d.Parts {
			gone[part] = true
		}
	}
	var names []string
	for _, name := range m.names {
		if derived, ok := become[name]; ok {
			names = append(names, derived)
		} else if !gone[name] {
			names = append(names, name)
		}
	}
	for name := range gone {
		delete(m.home, name)
	}
	for i, e := range entries {
		homes[i].index[e.Name] = len(homes[i].entries)
		homes[i].entries = append(homes[i].entries, e)
		m.home[e.Name] = homes[i]
	}
	m.names = names
	return nil
}

// entry describes the tensor.
func (d Derived) entry(m *Model) (Entry, error) {
	size, err := byteSize(d.DType, d.Shape)
	if err != nil {
		return Entry{}, err
	}
	type stored struct {
		file  *File
		entry Entry
	}
	raws := map[string]stored{}
	for _, part := range d.Parts {
		f := m.home[part]
		e, _ := f.Lookup(part)
		raws[part] = stored{f, e}
	}
	path := m.home[d.Parts[0]].Path()
	return Entry{Name: d.Name, DType: d.DType, Shape: d.Shape, Size: size, Derived: func() (Tensor, error) {
		values, err := d.Values(func(part string) (Tensor, error) {
			from := raws[part]
			data, err := from.file.bytes(from.entry)
			return Tensor{Name: part, DType: from.entry.DType, Shape: from.entry.Shape, Data: data}, err
		})
		if err != nil {
			return Tensor{}, fmt.Errorf("safetensors: %s: tensor %s: %w", path, quote(d.Name), err)
		}
		return FromFloat32sAs(d.DType, d.Name, d.Shape, values), nil
	}}, nil
}
