package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/rltrain/rltrain/internal/outfile"
)

// A Pair is one metadata entry. Value is a uint32, int32, float32, bool, string, []string, []int32 or []float32.
type Pair struct {
	Key   string
	Value any
}

// A Source is a tensor to write; Data returns its blocks when it is written.
type Source struct {
	Name  string
	Type  Type
	Shape []int64 // the slowest dimension first
	Data  func() ([]byte, error)
}

// Write writes a GGUF file of version 3, atomically.
func Write(path string, metadata []Pair, tensors []Source) error {
	file, err := outfile.Create(path, 0o644)
	if err != nil {
		return fmt.Errorf("gguf: writing %s: %w", path, err)
	}
	defer file.Close()
	out := bufio.NewWriterSize(file, 1<<20)
	if err = write(out, metadata, tensors); err == nil {
		if err = out.Flush(); err == nil {
			err = file.Commit()
		}
	}
	if err != nil {
		return fmt.Errorf("gguf: writing %s: %w", path, err)
	}
	return nil
}

// encoder appends values in the file's format.
type encoder struct{ b []byte }

func (e *encoder) u32(n uint32) { e.b = binary.LittleEndian.AppendUint32(e.b, n) }
func (e *encoder) u64(n uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, n) }
func (e *encoder) text(s string) {
	e.u64(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) array(k kind, n int) {
	e.u32(uint32(kindArray))
	e.u32(uint32(k))
	e.u64(uint64(n))
}

func (e *encoder) fixed(v any) (err error) {
	e.b, err = binary.Append(e.b, binary.LittleEndian, v)
	return err
}

func (e *encoder) pair(p Pair) error {
	e.text(p.Key)
	switch v := p.Value.(type) {
	case string:
		e.u32(uint32(kindString))
		e.text(v)
		return nil
	case []string:
		e.array(kindString, len(v))
		for _, s := range v {
			e.text(s)
		}
		return nil
	case []int32:
		e.array(kindInt32, len(v))
	case []float32:
		e.array(kindFloat32, len(v))
	case uint32:
		e.u32(uint32(kindUint32))
	case int32:
		e.u32(uint32(kindInt32))
	case float32:
		e.u32(uint32(kindFloat32))
	case bool:
		e.u32(uint32(kindBool))
	default:
		return fmt.Errorf("metadata %s is a %T, which has no form here", quote(p.Key), v)
	}
	return e.fixed(p.Value)
}

func write(out io.Writer, metadata []Pair, tensors []Source) error {
	e := &encoder{b: []byte("GGUF")}
	e.u32(3)
	e.u64(uint64(len(tensors)))
	e.u64(uint64(len(metadata)))
	for _, p := range metadata {
		if err := e.pair(p); err != nil {
			return err
		}
	}
	offset := int64(0)
	sizes := make([]int64, len(tensors))
	for i, t := range tensors {
		e.text(t.Name)
		e.u32(uint32(len(t.Shape)))
		for _, d := range slices.Backward(t.Shape) {
			e.u64(uint64(d))
		}
		e.u32(formats[t.Type].id)
		e.u64(uint64(offset))
		var err error
		if _, sizes[i], err = t.Type.sizeOf(t.Shape); err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		offset += padded(sizes[i])
	}
	e.b = append(e.b, make([]byte, padded(int64(len(e.b)))-int64(len(e.b)))...)
	if _, err := out.Write(e.b); err != nil {
		return err
	}
	for i, t := range tensors {
		data, err := t.Data()
		if err == nil && int64(len(data)) != sizes[i] {
			err = fmt.Errorf("%s %v takes %d bytes, the data has %d", t.Type, t.Shape, sizes[i], len(data))
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
		if _, err := out.Write(make([]byte, padded(sizes[i])-sizes[i])); err != nil {
			return err
		}
	}
	return nil
}

// padded rounds n up to the alignment of written files.
func padded(n int64) int64 { return (n + defaultAlignment - 1) &^ (defaultAlignment - 1) }

// Pairs returns the metadata entries whose keys satisfy keep, to be written again.
func (f *File) Pairs(keep func(key string) bool) ([]Pair, error) {
	var list []Pair
	for _, key := range f.keys {
		if !keep(key) {
			continue
		}
		v, err := f.again(key)
		if err != nil {
			return nil, err
		}
		list = append(list, Pair{key, v})
	}
	return list, nil
}

// again returns the value of a key as Write needs it; integers get the type that llama.cpp uses.
func (f *File) again(key string) (any, error) {
	v := f.values[key]
	switch {
	case v.array && v.kind == kindString:
		list, _, err := f.Texts(key)
		return list, err
	case v.array && (v.kind == kindFloat32 || v.kind == kindFloat64):
		list, _, err := f.Floats(key)
		narrow := make([]float32, len(list))
		for i, x := range list {
			narrow[i] = float32(x)
		}
		return narrow, err
	case v.array:
		list, _, err := f.Ints(key)
		narrow := make([]int32, len(list))
		for i, n := range list {
			narrow[i] = int32(n)
		}
		return narrow, err
	case v.kind == kindString:
		s, _, err := f.Text(key)
		return s, err
	case v.kind == kindBool:
		b, _, err := f.Bool(key)
		return b, err
	case v.kind == kindFloat32 || v.kind == kindFloat64:
		x, _, err := f.Float(key)
		return float32(x), err
	}
	n, _, err := f.Int(key)
	return uint32(n), err
}
