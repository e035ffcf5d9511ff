package safetensors

import (
	"fmt"
	"os"

	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/pickle"
)

// OpenBin opens a torch.save file such as pytorch_model.bin, like [Open]. Tensors keep the order of its dictionary. It reads
// the file once to verify its checksums.
func OpenBin(path string) (*File, error) {
	f, err := smallfile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	file, err := newBin(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	return file, nil
}

func newBin(f *os.File) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	tensors, err := pickle.Read(f, info.Size())
	if err != nil {
		return nil, err
	}
	file := &File{f: f, index: make(map[string]int, len(tensors))}
	for i, t := range tensors {
		e := Entry{Name: t.Name, DType: DType(t.DType), Shape: t.Shape, Offset: t.Offset, Strides: t.Strides}
		if e.Size, err = byteSize(e.DType, e.Shape); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		file.entries = append(file.entries, e)
		file.index[t.Name] = i
	}
	return file, nil
}

// gather reads a tensor that is not contiguous and row-major.
func (f *File) gather(e Entry) ([]byte, error) {
	width := e.DType.Size()
	span := int64(1) // in elements, from the first to the last
	for i, n := range e.Shape {
		span += (n - 1) * e.Strides[i]
	}
	from := make([]byte, span*width)
	if err := f.readAt(from, e, 0); err != nil {
		return nil, err
	}
	data := make([]byte, 0, e.Size)
	at := make([]int64, len(e.Shape)) // the element's index in each dimension
	for int64(len(data)) < e.Size {
		element := int64(0)
		for i, k := range at {
			element += k * e.Strides[i]
		}
		data = append(data, from[element*width:][:width]...)
		for i := len(at) - 1; i >= 0; i-- {
			if at[i]++; at[i] < e.Shape[i] {
				break
			}
			at[i] = 0
		}
	}
	return data, nil
}
