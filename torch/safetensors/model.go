package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/torch/gguf/convert"
)

// A layout is a way in which a folder holds weights.
type layout struct {
	file, index string
	end         string // of the names of an index's files
	open        func(path string) (*File, error)
}

// layouts are those that OpenModel knows, the preferred one first.
var layouts = []layout{
	{"model.safetensors", "model.safetensors.index.json", ".safetensors", Open},
	{"pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", OpenBin},
}

// Model is the weights of a model folder: one file, or several that an index
// joins. Its methods may be called from several goroutines at once, Close
// excepted.
type Model struct {
	path  string
	files []*File
	names []string
	home  map[string]*File
}

// OpenModel opens model.safetensors in dir or, where it is absent, all files that
// model.safetensors.index.json names; else pytorch_model.bin or the files of its
// index, which package pickle reads. An index must tell the truth: each tensor
// lies in the file it names, and no file holds a tensor the index puts elsewhere
// or leaves out. A folder with none of them may have model.gguf, which package gguf
// reads.
func OpenModel(dir string) (*Model, error) {
	for _, l := range layouts {
		m, err := l.openModel(dir)
		if errors.Is(err, errNone) {
			continue
		}
		return m, err
	}
	path := filepath.Join(dir, convert.WeightsFile)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return openGGUF(path)
	}
	return nil, fmt.Errorf("safetensors: %s has neither %s nor %s, nor %s or %s", dir, layouts[0].file, layouts[0].index, layouts[1].file, layouts[1].index)
}

// errNone says that a folder has no weights of a layout.
var errNone = errors.New("no weights")

func (l layout) openModel(dir string) (*Model, error) {
	single := filepath.Join(dir, l.file)
	_, err := os.Stat(single)
	if errors.Is(err, fs.ErrNotExist) {
		return l.openSharded(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f, err := l.open(single)
	if err != nil {
		return nil, err
	}
	m := &Model{path: single, home: map[string]*File{}}
	m.add(f)
	return m, nil
}

func (l layout) openSharded(dir string) (*Model, error) {
	path := filepath.Join(dir, l.index)
	weightMap, err := l.readIndex(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNone
	}
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	m := &Model{path: path, home: map[string]*File{}}
	if err := m.openShards(dir, weightMap, l.open); err != nil {
		m.Close()
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	return m, nil
}

func (m *Model) openShards(dir string, weightMap map[string]string, open func(path string) (*File, error)) error {
	shards := slices.Compact(slices.Sorted(maps.Values(weightMap)))
	for _, shard := range shards {
		f, err := open(filepath.Join(dir, shard))
		if err != nil {
			return err
		}
		m.add(f)
		for _, name := range f.Names() {
			switch where, ok := weightMap[name]; {
			case !ok:
				return fmt.Errorf("tensor %s of %s is not in weight_map", quote(name), shard)
			case where != shard:
				return fmt.Errorf("tensor %s lies in %s, weight_map says %s", quote(name), shard, where)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(weightMap)) {
		if m.home[name] == nil {
			return fmt.Errorf("tensor %s is not in %s, where weight_map puts it", quote(name), weightMap[name])
		}
	}
	return nil
}

func (m *Model) add(f *File) {
	m.files = append(m.files, f)
	for _, name := range f.Names() {
		m.names = append(m.names, name)
		m.home[name] = f
	}
}

// readIndex is the weight_map of an index: tensor name to file name.
func (l layout) readIndex(path string) (map[string]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxHeader {
		return nil, fmt.Errorf("%d bytes are too many for an index, at most %d are allowed", info.Size(), maxHeader)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseIndex(data, l.end)
}

func parseIndex(data []byte, end string) (map[string]string, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8")
	}
	r := newJSONReader(data)
	var weightMap map[string]string
	err := r.object(func(key string) error {
		if key != "weight_map" {
			// "metadata" holds totals that nothing here needs.
			var skip any
			return wrapName(quote(key), r.dec.Decode(&skip))
		}
		m, err := r.stringMap()
		weightMap = m
		return wrapName(key, err)
	})
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return nil, err
	}
	if len(weightMap) == 0 {
		return nil, errors.New("weight_map is missing or empty")
	}
	for _, name := range slices.Sorted(maps.Keys(weightMap)) {
		// A shard is a neighbour of its index. Anything else would let a downloaded
		// folder read files outside itself.
		shard := weightMap[name]
		if strings.ContainsAny(shard, `/\`) || !filepath.IsLocal(shard) || !strings.HasSuffix(shard, end) {
			return nil, fmt.Errorf("weight_map puts tensor %s in %s, want a %s file of the same folder", quote(name), quote(shard), end)
		}
	}
	return weightMap, nil
}

// Path is the file that describes the model: the one file, or the index.
func (m *Model) Path() string { return m.path }

// Names lists all tensors, file by file, in the order of their data.
func (m *Model) Names() []string { return slices.Clone(m.names) }

// Entry finds a tensor by name and the path of the file that holds it.
func (m *Model) Entry(name string) (path string, e Entry, ok bool) {
	f := m.home[name]
	if f == nil {
		return "", Entry{}, false
	}
	e, ok = f.Lookup(name)
	return f.Path(), e, ok
}

// Float32s reads a tensor as [File.Float32s] does.
func (m *Model) Float32s(name string) ([]float32, error) {
	f := m.home[name]
	if f == nil {
		return nil, fmt.Errorf("safetensors: %s: no tensor %s", m.path, quote(name))
	}
	return f.Float32s(name)
}

// Bytes reads a tensor as [File.Bytes] does.
func (m *Model) Bytes(name string) ([]byte, error) {
	f := m.home[name]
	if f == nil {
		return nil, fmt.Errorf("safetensors: %s: no tensor %s", m.path, quote(name))
	}
	return f.Bytes(name)
}

// Same reports whether two tensors have one dtype, one shape and the same bytes.
func (m *Model) Same(a, b string) (bool, error) {
	fa, fb := m.home[a], m.home[b]
	for name, f := range map[string]*File{a: fa, b: fb} {
		if f == nil {
			return false, fmt.Errorf("safetensors: %s: no tensor %s", m.path, quote(name))
		}
	}
	ea, _ := fa.Lookup(a)
	eb, _ := fb.Lookup(b)
	if ea.DType != eb.DType || !slices.Equal(ea.Shape, eb.Shape) {
		return false, nil
	}
	if !ea.Direct() || !eb.Direct() {
		da, err := fa.Bytes(a)
		if err != nil {
			return false, err
		}
		db, err := fb.Bytes(b)
		return bytes.Equal(da, db), err
	}
	parts := [2][]byte{make([]byte, min(chunk, ea.Size)), make([]byte, min(chunk, ea.Size))}
	for done := int64(0); done < ea.Size; done += chunk {
		n := min(chunk, ea.Size-done)
		if err := fa.readAt(parts[0][:n], ea, done); err != nil {
			return false, err
		}
		if err := fb.readAt(parts[1][:n], eb, done); err != nil {
			return false, err
		}
		if !bytes.Equal(parts[0][:n], parts[1][:n]) {
			return false, nil
		}
	}
	return true, nil
}

// Close closes all files; tensors read before stay valid.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
