package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/gguf"
)

// File is an open weights file with a validated header. All methods but Close are safe for concurrent use.
type File struct {
	f        *os.File
	entries  []Entry
	index    map[string]int
	metadata map[string]string
	gguf     *gguf.File // nil for other formats
}

// Open opens the file at path and validates its header against the file's size. It reads no tensor data. Errors name the
// file and the tensor.
func Open(path string) (*File, error) {
	f, err := smallfile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	file, err := newFile(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	return file, nil
}

func newFile(f *os.File) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var prefix [8]byte
	if info.Size() < int64(len(prefix)) {
		return nil, fmt.Errorf("%d bytes are too few for a safetensors file", info.Size())
	}
	if _, err := f.ReadAt(prefix[:], 0); err != nil {
		return nil, fmt.Errorf("reading the header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader {
		return nil, fmt.Errorf("the header claims %d bytes, maximum %d; is this a safetensors file?", n, maxHeader)
	}
	start := int64(len(prefix)) + int64(n)
	if start > info.Size() {
		return nil, fmt.Errorf("the header claims %d bytes but the file has only %d; it may be truncated, download it again", n, info.Size())
	}
	header := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(f, int64(len(prefix)), int64(n)), header); err != nil {
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	entries, metadata, err := parseHeader(header, start, info.Size()-start)
	if err != nil {
		return nil, err
	}
	file := &File{f: f, entries: entries, index: make(map[string]int, len(entries)), metadata: metadata}
	for i, e := range entries {
		file.index[e.Name] = i
	}
	return file, nil
}

// Path is the path passed to Open.
func (f *File) Path() string { return f.f.Name() }

// Names returns the tensors in data order, or in the order of a pickle's dictionary.
func (f *File) Names() []string {
	names := make([]string, len(f.entries))
	for i, e := range f.entries {
		names[i] = e.Name
	}
	return names
}

// Lookup finds a tensor by name. The caller owns the entry.
func (f *File) Lookup(name string) (Entry, bool) {
	i, ok := f.index[name]
	if !ok {
		return Entry{}, false
	}
	e := f.entries[i]
	e.Shape, e.Strides = slices.Clone(e.Shape), slices.Clone(e.Strides)
	return e, true
}

// Metadata returns a copy of the header's string pairs.
func (f *File) Metadata() map[string]string {
	m := make(map[string]string, len(f.metadata))
	maps.Copy(m, f.metadata)
	return m
}

// Close closes the file. Tensors read before stay valid.
func (f *File) Close() error {
	if f.gguf != nil {
		return errors.Join(f.f.Close(), f.gguf.Close())
	}
	return f.f.Close()
}

// Bytes reads a tensor's data as stored: little-endian, row-major.
func (f *File) Bytes(name string) ([]byte, error) {
	e, ok := f.Lookup(name)
	if !ok {
		return nil, f.missing(name)
	}
	return f.bytes(e)
}

// bytes reads the data that e describes.
func (f *File) bytes(e Entry) ([]byte, error) {
	switch {
	case e.Derived != nil:
		t, err := e.Derived(0, 1)
		return t.Data, err
	case e.Strides != nil:
		return f.gather(e)
	case e.Converted != nil:
		return f.convert(e), nil
	}
	data := make([]byte, e.Size)
	if err := f.readAt(data, e, 0); err != nil {
		return nil, err
	}
	return data, nil
}

// chunk is the number of bytes that Each converts at a time: a multiple of every element size, large for the disk and
// small for the cache.
const chunk = 256 << 10

// Float32s reads an F32, F16 or BF16 tensor, row-major, as float32, which is exact. Other dtypes are errors.
func (f *File) Float32s(name string) ([]float32, error) {
	return f.part(name, 0, 1)
}

// part is that of [Model.Part].
func (f *File) part(name string, at, of int) ([]float32, error) {
	e, ok := f.Lookup(name)
	if !ok {
		return nil, f.missing(name)
	}
	if e.Derived != nil {
		t, err := e.Derived(at, of)
		if err != nil {
			return nil, err
		}
		return t.Float32s()
	}
	direct := e.Direct()
	if direct {
		e.Size /= int64(of)
		e.Offset += int64(at) * e.Size
	}
	var data []float32
	if e.DType.widens() {
		data = make([]float32, 0, e.Size/e.DType.Size())
	}
	err := f.each(name, e, func(values []float32) error {
		data = append(data, values...)
		return nil
	})
	if !direct {
		data = data[at*len(data)/of : (at+1)*len(data)/of]
	}
	return data, err
}

// Each reads a tensor like [File.Float32s], but in parts: it calls use with consecutive values, which are valid until use
// returns. So a large tensor takes little memory.
func (f *File) Each(name string, use func(values []float32) error) error {
	e, ok := f.Lookup(name)
	if !ok {
		return f.missing(name)
	}
	return f.each(name, e, use)
}

// each reads the data that e describes.
func (f *File) each(name string, e Entry, use func(values []float32) error) error {
	if !e.DType.widens() {
		return fmt.Errorf("safetensors: %s: tensor %s: cannot convert %s to float32; want F32, F16 or BF16", f.Path(), quote(name), e.DType)
	}
	switch {
	case e.Derived != nil:
		t, err := e.Derived(0, 1)
		if err != nil {
			return err
		}
		values, err := t.Float32s()
		if err != nil {
			return err
		}
		return use(values)
	case e.Converted != nil:
		return f.dequantize(e, use)
	}
	width := e.DType.Size()
	if e.Strides != nil {
		stored, err := f.gather(e)
		if err != nil {
			return err
		}
		data := make([]float32, e.Size/width)
		widen(data, e.DType, stored)
		return use(data)
	}
	buf := make([]byte, min(chunk, e.Size))
	data := make([]float32, int64(len(buf))/width)
	for done := int64(0); done < e.Size; done += chunk {
		part := buf[:min(chunk, e.Size-done)]
		if err := f.readAt(part, e, done); err != nil {
			return err
		}
		values := data[:int64(len(part))/width]
		widen(values, e.DType, part)
		if err := use(values); err != nil {
			return err
		}
	}
	return nil
}

// readAt fills buf from byte skip of a tensor's data.
func (f *File) readAt(buf []byte, e Entry, skip int64) error {
	_, err := io.ReadFull(io.NewSectionReader(f.f, e.Offset+skip, int64(len(buf))), buf)
	if err != nil {
		return fmt.Errorf("safetensors: %s: reading tensor %s: %w", f.Path(), quote(e.Name), err)
	}
	return nil
}

func (f *File) missing(name string) error {
	return fmt.Errorf("safetensors: %s: no tensor %s", f.Path(), quote(name))
}
