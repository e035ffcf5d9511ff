package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/gguf/convert"
)

// ggufDTypes are the dtypes of tensors that GGUF stores like safetensors; quantised tensors read as F32.
var ggufDTypes = map[gguf.Type]DType{gguf.F32: F32, gguf.F16: F16, gguf.BF16: BF16}

// openGGUF opens the weights of a GGUF file, under transformers' names and in its order.
func openGGUF(path string) (*Model, error) {
	target, err := filepath.EvalSymlinks(path) // the parts of a split are next to the file itself
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	source, err := gguf.Open(target)
	if err != nil {
		return nil, err
	}
	m := &Model{path: source.Path(), home: map[string]*File{}}
	if err := m.addGGUF(source); err != nil {
		source.Close()
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Model) addGGUF(source *gguf.File) error {
	weights, err := convert.Weights(source)
	if err != nil {
		return err
	}
	parts := map[string]*File{}
	for _, w := range weights {
		part := parts[w.Tensor.Path]
		if part == nil {
			f, err := smallfile.Open(w.Tensor.Path)
			if err != nil {
				return fmt.Errorf("safetensors: %w", err)
			}
			part = &File{f: f, index: map[string]int{}, gguf: source}
			parts[w.Tensor.Path] = part
			m.files = append(m.files, part)
		}
		e := Entry{Name: w.Name, DType: ggufDTypes[w.Tensor.Type], Shape: slices.Clone(w.Tensor.Shape), Offset: w.Tensor.Offset, Size: w.Tensor.Size}
		if e.DType == "" {
			e.DType = F32
			if e.Size, err = byteSize(F32, e.Shape); err != nil {
				return fmt.Errorf("safetensors: %s: tensor %s: %w", w.Tensor.Path, quote(w.Name), err)
			}
		}
		if w.Tensor.Type.Packed() || w.Heads > 0 || w.Shift != 0 {
			e.Converted = &w
		}
		part.index[w.Name] = len(part.entries)
		part.entries = append(part.entries, e)
		m.names = append(m.names, w.Name)
		m.home[w.Name] = part
	}
	return nil
}

// convert returns the data of a tensor that GGUF stores differently, as its DType.
func (f *File) convert(e Entry) []byte {
	w := e.Converted
	if !w.Tensor.Type.Packed() && w.Shift == 0 {
		return slices.Clone(w.Rows(f.gguf.Bytes(w.Tensor)))
	}
	raw := make([]byte, 0, e.Size)
	f.dequantize(e, func(values []float32) error {
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		return nil
	})
	return raw
}

// dequantize calls use with consecutive values of a tensor that GGUF stores differently, and returns its error.
func (f *File) dequantize(e Entry, use func(values []float32) error) error {
	w, data := e.Converted, f.gguf.Bytes(e.Converted.Tensor)
	count, block := w.Tensor.Type.Block()
	size := chunk / 4 / count * block // of a part
	order := func(i int) int { return i }
	if w.Heads > 0 {
		rows := int(w.Tensor.Shape[0])
		size = len(data) / rows
		order = func(row int) int { return convert.Interleaved(row, rows, w.Heads) }
	}
	for i := 0; i*size < len(data); i++ {
		part := data[order(i)*size:]
		values := w.Tensor.Type.Dequantize(part[:min(size, len(part))])
		for j := range values {
			if w.Shift != 0 { // adding 0 would turn -0 into 0
				values[j] += w.Shift
			}
		}
		if err := use(values); err != nil {
			return err
		}
	}
	return nil
}

// Packed is a quantised tensor as stored.
type Packed struct {
	Type  gguf.Type // of the blocks
	Shape []int64   // [out, in]
	// Blocks are row-major, with rows in transformers' order; every row consists of full blocks.
	Blocks []byte
}

// Packed reads the blocks of a quantised tensor in a GGUF file; ok is false for any other tensor. The caller owns the
// blocks.
func (m *Model) Packed(name string) (p Packed, ok bool) {
	f := m.home[name]
	if f == nil {
		return p, false
	}
	e, _ := f.Lookup(name)
	if w := e.Converted; w != nil && w.Tensor.Type.Packed() && w.Shift == 0 {
		return Packed{w.Tensor.Type, e.Shape, slices.Clone(w.Rows(f.gguf.Bytes(w.Tensor)))}, true
	}
	return p, false
}
