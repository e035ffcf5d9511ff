package gguf

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/rltrain/rltrain/internal/smallfile"
)

// defaultAlignment is the alignment of tensors in bytes, unless metadata sets one.
const defaultAlignment = 32

// File is an open GGUF model: one file, or all files of a split. All methods but Close are safe for concurrent use.
type File struct {
	path    string
	keys    []string // of metadata, in file order
	values  map[string]value
	tensors []Tensor
	index   map[string]int
	mapped  map[string][]byte // by path
}

// Tensor is a tensor as described by a header.
type Tensor struct {
	Name string
	Type Type
	// Shape starts with the slowest dimension, as in PyTorch; the file stores it reversed. A matrix is [out, in], and
	// its rows consist of full blocks.
	Shape []int64
	// Path is the file that holds the data, Size bytes long, at byte Offset.
	Path         string
	Offset, Size int64
}

// Open opens the GGUF file at path and, if it is part of a split, the other parts in the same folder. Errors name the
// file and the invalid metadata key or tensor.
func Open(path string) (*File, error) {
	paths, err := parts(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	f := &File{path: paths[0], index: map[string]int{}, mapped: map[string][]byte{}}
	for i, path := range paths {
		data, err := mapFile(path)
		if err == nil {
			f.mapped[path] = data
			err = f.add(path, data, i, len(paths))
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("gguf: %s: %w", path, err)
		}
	}
	if err := f.checkSplit(len(paths)); err != nil {
		f.Close()
		return nil, fmt.Errorf("gguf: %s: %w", f.path, err)
	}
	return f, nil
}

// add reads part number i of n, the file data.
func (f *File) add(path string, data []byte, i, n int) error {
	part := &File{path: path}
	tensors, err := part.header(data)
	if err != nil {
		return err
	}
	if err := part.checkPart(i, n); err != nil {
		return err
	}
	if i == 0 {
		f.keys, f.values = part.keys, part.values
	}
	for _, t := range tensors {
		if j, ok := f.index[t.Name]; ok {
			return fmt.Errorf("tensor %s is in %s too", quote(t.Name), f.tensors[j].Path)
		}
		t.Path = path
		f.index[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	if len(f.tensors) > maxTensors {
		return fmt.Errorf("the parts have more than %d tensors", maxTensors)
	}
	return nil
}

func mapFile(path string) ([]byte, error) {
	file, err := smallfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < 24 {
		return nil, fmt.Errorf("%d bytes are too few for a GGUF file", info.Size())
	}
	data, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mapping it: %w", err)
	}
	return data, nil
}

// Path returns the file with the metadata: the first part of a split.
func (f *File) Path() string { return f.path }

// Keys lists the metadata keys in file order.
func (f *File) Keys() []string { return slices.Clone(f.keys) }

// Tensors lists all tensors in header order.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Bytes returns the stored data of a tensor in mapped memory: read-only, and valid until Close.
func (f *File) Bytes(t Tensor) []byte { return f.mapped[t.Path][t.Offset:][:t.Size] }

// Float32s returns the dequantised data of a tensor, row-major.
func (f *File) Float32s(t Tensor) []float32 { return t.Type.Dequantize(f.Bytes(t)) }

// Dequantize returns the values of full blocks of type t.
func (t Type) Dequantize(blocks []byte) []float32 {
	format := formats[t]
	n := len(blocks) / format.bytes
	values := make([]float32, n*format.values)
	for i := range n {
		format.dequantize(values[i*format.values:][:format.values], blocks[i*format.bytes:][:format.bytes])
	}
	return values
}

// Close unmaps the file.
func (f *File) Close() error {
	var errs []error
	for path, data := range f.mapped {
		errs = append(errs, syscall.Munmap(data))
		delete(f.mapped, path)
	}
	f.values = nil
	return errors.Join(errs...)
}
