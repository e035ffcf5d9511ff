package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/half"
	"github.com/rltrain/rltrain/internal/outfile"
)

// Tensor is a tensor in memory. Data holds the elements, little-endian and row-major.
type Tensor struct {
	Name  string
	DType DType
	Shape []int64
	Data  []byte
}

// FromFloat32s returns an F32 tensor with a copy of data.
func FromFloat32s(name string, shape []int64, data []float32) Tensor {
	b := make([]byte, 0, 4*len(data))
	for _, v := range data {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return Tensor{Name: name, DType: F32, Shape: slices.Clone(shape), Data: b}
}

// FromInt64s returns an I64 tensor with a copy of data.
func FromInt64s(name string, shape []int64, data []int64) Tensor {
	b := make([]byte, 0, 8*len(data))
	for _, v := range data {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return Tensor{Name: name, DType: I64, Shape: slices.Clone(shape), Data: b}
}

// Float32s returns the elements as float32, which is exact. A dtype other than F32, F16 and BF16, or data that does not fit
// the shape, is an error.
func (t Tensor) Float32s() ([]float32, error) {
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if !t.DType.widens() {
		return nil, fmt.Errorf("safetensors: tensor %s: cannot convert %s to float32; want F32, F16 or BF16", quote(t.Name), t.DType)
	}
	data := make([]float32, int64(len(t.Data))/t.DType.Size())
	widen(data, t.DType, t.Data)
	return data, nil
}

func (t Tensor) check() error {
	size, err := byteSize(t.DType, t.Shape)
	if err != nil {
		return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
	}
	if size != int64(len(t.Data)) {
		return fmt.Errorf("tensor %s: %s %s needs %d bytes, but the data has %d", quote(t.Name), t.DType, shapeText(t.Shape), size, len(t.Data))
	}
	return nil
}

// FromFloat32sAs returns a tensor of data rounded to the nearest value of d: F32, F16 or BF16. It panics for other types.
func FromFloat32sAs(d DType, name string, shape []int64, data []float32) Tensor {
	if d == F32 {
		return FromFloat32s(name, shape, data)
	}
	b := make([]byte, 0, 2*len(data))
	for _, v := range data {
		switch d {
		case BF16:
			b = binary.LittleEndian.AppendUint16(b, half.ToBFloat16(v))
		case F16:
			b = binary.LittleEndian.AppendUint16(b, half.ToFloat16(v))
		default:
			panic(fmt.Sprintf("safetensors: cannot convert float32 to %s", d))
		}
	}
	return Tensor{Name: name, DType: d, Shape: slices.Clone(shape), Data: b}
}

// A Source is a tensor whose data is computed when it is written, so that only one is in memory. Data returns the bytes as
// in [Tensor].
type Source struct {
	Name  string
	DType DType
	Shape []int64
	Data  func() ([]byte, error)
}

// Write writes tensors to a file, atomically and synced. The bytes depend only on the arguments, not on the order of
// tensors: data is sorted by decreasing element size, then by name, which aligns every tensor. It adds "format": "pt" to
// metadata without a format, because transformers 4 refuses a model without it.
func Write(path string, tensors []Tensor, metadata map[string]string) error {
	sources := make([]Source, len(tensors))
	for i, t := range tensors {
		sources[i] = Source{t.Name, t.DType, t.Shape, func() ([]byte, error) { return t.Data, nil }}
	}
	for _, t := range tensors {
		if err := t.check(); err != nil {
			return fmt.Errorf("safetensors: writing %s: %w", path, err)
		}
	}
	return WriteSources(path, sources, metadata)
}

// WriteSources is [Write] for tensors that are computed one by one.
func WriteSources(path string, sources []Source, metadata map[string]string) error {
	if err := write(path, sources, metadata); err != nil {
		return fmt.Errorf("safetensors: writing %s: %w", path, err)
	}
	return nil
}

func write(path string, sources []Source, metadata map[string]string) error {
	sorted := slices.Clone(sources)
	slices.SortFunc(sorted, func(a, b Source) int {
		return cmp.Or(cmp.Compare(b.DType.Size(), a.DType.Size()), strings.Compare(a.Name, b.Name))
	})
	header, err := makeHeader(sorted, metadata)
	if err != nil {
		return err
	}
	out, err := outfile.Create(path, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := out.Write(header); err != nil {
		return err
	}
	for _, s := range sorted {
		data, err := s.Data()
		if err == nil {
			err = Tensor{s.Name, s.DType, s.Shape, data}.check()
		}
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return fmt.Errorf("tensor %s: %w", quote(s.Name), err)
		}
	}
	return out.Commit()
}

// makeHeader returns the length prefix and the header for tensors in this order.
func makeHeader(tensors []Source, metadata map[string]string) ([]byte, error) {
	meta := map[string]string{"format": "pt"}
	maps.Copy(meta, metadata)
	for k, v := range meta {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, fmt.Errorf("metadata %q: not valid UTF-8", k)
		}
	}
	buf := bytes.NewBuffer(make([]byte, 8))
	buf.WriteString(`{"` + metadataKey + `":`)
	if err := appendJSON(buf, meta); err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(tensors))
	var at int64
	for _, t := range tensors {
		switch {
		case !utf8.ValidString(t.Name):
			return nil, fmt.Errorf("tensor %q: the name is not valid UTF-8", t.Name)
		case t.Name == "" || t.Name == metadataKey:
			return nil, fmt.Errorf("tensor %q: the name is reserved", t.Name)
		case seen[t.Name]:
			return nil, fmt.Errorf("duplicate tensor %s", quote(t.Name))
		}
		seen[t.Name] = true
		size, err := byteSize(t.DType, t.Shape)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		end := at + size
		buf.WriteByte(',')
		if err := appendJSON(buf, t.Name); err != nil {
			return nil, err
		}
		buf.WriteByte(':')
		err = appendJSON(buf, struct {
			DType   DType    `json:"dtype"`
			Shape   []int64  `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{t.DType, append([]int64{}, t.Shape...), [2]int64{at, end}})
		if err != nil {
			return nil, err
		}
		at = end
	}
	buf.WriteByte('}')
	for buf.Len()%8 != 0 {
		buf.WriteByte(' ')
	}
	header := buf.Bytes()
	if len(header)-8 > maxHeader {
		return nil, errors.New("the header is larger than 100 MB")
	}
	binary.LittleEndian.PutUint64(header, uint64(len(header)-8))
	return header, nil
}

func appendJSON(buf *bytes.Buffer, v any) error {
	text, err := files.EncodeLine(v)
	buf.Write(text)
	return err
}
