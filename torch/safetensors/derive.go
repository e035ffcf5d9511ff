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
	// Split means that Values makes a fraction of the tensor of the same fraction of each part.
	Split bool
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
	raws, split := map[string]stored{}, d.Split
	for _, part := range d.Parts {
		f := m.home[part]
		e, _ := f.Lookup(part)
		raws[part] = stored{f, e}
		split = split && e.Direct()
	}
	path := m.home[d.Parts[0]].Path()
	return Entry{Name: d.Name, DType: d.DType, Shape: d.Shape, Size: size, Derived: func(at, of int) (Tensor, error) {
		values, err := d.Values(func(part string) (Tensor, error) {
			from := raws[part]
			e := from.entry
			if split {
				e.Size /= int64(of)
				e.Offset += int64(at) * e.Size
			}
			data, err := from.file.bytes(e)
			return Tensor{Name: part, DType: e.DType, Shape: e.Shape, Data: data}, err
		})
		if err != nil {
			return Tensor{}, fmt.Errorf("safetensors: %s: tensor %s: %w", path, quote(d.Name), err)
		}
		if !split {
			values = values[at*len(values)/of : (at+1)*len(values)/of]
		}
		return FromFloat32sAs(d.DType, d.Name, []int64{int64(len(values))}, values), nil
	}}, nil
}
