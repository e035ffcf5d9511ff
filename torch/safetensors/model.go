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

	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/gguf/convert"
)

// A layout is a way to store weights in a folder.
type layout struct {
	file, index string
	end         string // suffix of an index's files
	open        func(path string) (*File, error)
}

// layouts are the known layouts, preferred first.
var layouts = []layout{
	{"model.safetensors", "model.safetensors.index.json", ".safetensors", Open},
	{"pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", OpenBin},
}

// Model is the weights of a model folder: one file, or several joined by an index. All methods but Close are safe for
// concurrent use.
type Model struct {
	path  string
	files []*File
	names []string
	home  map[string]*File
}

// OpenModel opens the first of these in dir: model.safetensors, the files of model.safetensors.index.json,
// pytorch_model.bin, the files of its index, model.gguf. Packages pickle and gguf read the latter formats. An index must be
// correct: each tensor is in the file that it names, and no file has other tensors.
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
	return nil, fmt.Errorf("safetensors: %s has no weights; want %s, %s, %s or %s", dir, layouts[0].file, layouts[0].index, layouts[1].file, layouts[1].index)
}

// errNone means that a folder has no weights in a layout.
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
				return fmt.Errorf("tensor %s of %s is missing in weight_map", quote(name), shard)
			case where != shard:
				return fmt.Errorf("tensor %s is in %s, but weight_map says %s", quote(name), shard, where)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(weightMap)) {
		if m.home[name] == nil {
			return fmt.Errorf("tensor %s is missing in %s, where weight_map puts it", quote(name), weightMap[name])
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

// readIndex reads the weight_map of an index: tensor name to file name.
func (l layout) readIndex(path string) (map[string]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxHeader {
		return nil, fmt.Errorf("the index has %d bytes, maximum %d", info.Size(), maxHeader)
	}
	data, err := smallfile.ReadAll(path)
	if err != nil {
		return nil, err
	}
	return ParseIndex(data, l.end)
}

// ParseIndex reads an index of weights: by the name of each tensor its shard, a file in the folder of the index whose name has this
// end.
func ParseIndex(data []byte, end string) (map[string]string, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8")
	}
	r := newJSONReader(data)
	var weightMap map[string]string
	err := r.object(func(key string) error {
		if key != "weight_map" {
			// "metadata" holds totals that are not needed.
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
		// A shard must be in the folder of its index. Otherwise a downloaded folder could read files outside itself.
		shard := weightMap[name]
		if strings.ContainsAny(shard, `/\`) || !filepath.IsLocal(shard) || !strings.HasSuffix(shard, end) {
			return nil, fmt.Errorf("weight_map puts tensor %s in %s; want a %s file in the same folder", quote(name), quote(shard), end)
		}
	}
	return weightMap, nil
}

// Path is the file that describes the model: its only file, or the index.
func (m *Model) Path() string { return m.path }

// Names returns all tensors, file by file, in data order.
func (m *Model) Names() []string { return slices.Clone(m.names) }

// Entry finds a tensor by name, and the path of its file.
func (m *Model) Entry(name string) (path string, e Entry, ok bool) {
	f := m.home[name]
	if f == nil {
		return "", Entry{}, false
	}
	e, ok = f.Lookup(name)
	return f.Path(), e, ok
}

// Float32s reads a tensor; see [File.Float32s].
func (m *Model) Float32s(name string) ([]float32, error) {
	f := m.home[name]
	if f == nil {
		return nil, fmt.Errorf("safetensors: %s: no tensor %s", m.path, quote(name))
	}
	return f.Float32s(name)
}

// Part reads part at of a tensor that is cut into as many equal ones along its first dimensions.
func (m *Model) Part(name string, at, of int) ([]float32, error) {
	f := m.home[name]
	if f == nil {
		return nil, fmt.Errorf("safetensors: %s: no tensor %s", m.path, quote(name))
	}
	return f.part(name, at, of)
}

// Each reads a tensor in parts; see [File.Each].
func (m *Model) Each(name string, use func(values []float32) error) error {
	f := m.home[name]
	if f == nil {
		return fmt.Errorf("safetensors: %s: no tensor %s", m.path, quote(name))
	}
	return f.Each(name, use)
}

// Bytes reads a tensor; see [File.Bytes].
func (m *Model) Bytes(name string) ([]byte, error) {
	f := m.home[name]
	if f == nil {
		return nil, fmt.Errorf("safetensors: %s: no tensor %s", m.path, quote(name))
	}
	return f.Bytes(name)
}

// Same reports whether two tensors are byte-identical, with equal dtypes and shapes.
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

// Close closes all files. Tensors read before stay valid.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
