package gguf_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/safetensors"
)

func open(t *testing.T, path string) *gguf.File {
	t.Helper()
	f := must.Get(gguf.Open(path))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

// Every type dequantises to the same bits as in the Python package gguf.
func TestDequantize(t *testing.T) {
	f := open(t, "testdata/types.gguf")
	want := must.Get(safetensors.Open("testdata/types.safetensors"))(t)
	defer want.Close()
	expect.Require(t, len(f.Tensors()) == 14, "%d tensors, want one of each of 14 types", len(f.Tensors()))
	for _, tensor := range f.Tensors() {
		expect.True(t, tensor.Name == string(tensor.Type) && slices.Equal(tensor.Shape, []int64{3, 512}),
			"tensor %s has type %s and shape %v", tensor.Name, tensor.Type, tensor.Shape)
		values := must.Get(want.Float32s(tensor.Name))(t)
		got := f.Float32s(tensor)
		expect.Require(t, len(got) == len(values), "%s: %d values, want %d", tensor.Name, len(got), len(values))
		for i, v := range values {
			if math.Float32bits(got[i]) != math.Float32bits(v) {
				t.Errorf("%s: value %d is %g, want %g", tensor.Name, i, got[i], v)
				break
			}
		}
	}
}

func TestMetadata(t *testing.T) {
	f := open(t, "testdata/types.gguf")
	for key, want := range map[string]int64{
		"test.uint8": 200, "test.int8": -100, "test.uint16": 60000, "test.int16": -30000, "test.uint32": 4000000000,
		"test.int32": -2000000000, "test.uint64": 9000000000000000000, "test.int64": -9000000000000000000,
	} {
		n, ok, err := f.Int(key)
		expect.True(t, n == want && ok && err == nil, "%s: %d, %t, %v, want %d", key, n, ok, err, want)
	}
	for key, want := range map[string]float64{"test.float32": float64(float32(.1)), "test.float64": .1, "test.int8": -100} {
		x, ok, err := f.Float(key)
		expect.True(t, x == want && ok && err == nil, "%s: %g, %t, %v, want %g", key, x, ok, err, want)
	}
	b, ok, err := f.Bool("test.bool")
	expect.True(t, b && ok && err == nil, "test.bool: %t, %t, %v", b, ok, err)
	if s, ok, err := f.Text("test.string"); s != "Größe ▁" || !ok || err != nil {
		t.Errorf("test.string: %q, %t, %v", s, ok, err)
	}
	texts, _, err := f.Texts("test.strings")
	if diff := cmp.Diff([]string{"a", "", "▁b"}, texts); diff != "" || err != nil {
		t.Error(diff, err)
	}
	ints, _, err := f.Ints("test.ints")
	if diff := cmp.Diff([]int64{3, -1, 2}, ints); diff != "" || err != nil {
		t.Error(diff, err)
	}
	floats, _, err := f.Floats("test.floats")
	if diff := cmp.Diff([]float64{.5, -2}, floats); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, ok, err := f.Int("test.none"); ok || err != nil {
		t.Errorf("a key that is not there: %t, %v", ok, err)
	}
	for _, key := range []string{"test.string", "test.float32", "test.bool", "test.ints"} {
		_, _, err = f.Int(key)
		expect.True(t, err != nil, "%s was read as an integer", key)
	}
	large := filepath.Join(t.TempDir(), "large.gguf")
	must.Do(t, os.WriteFile(large, header(1, 1).put("large", uint32(10), uint64(1)<<63).tensor("w", 0, 0, 1).data(4), 0o644))
	n, _, err := open(t, large).Int("large")
	expect.True(t, err != nil, "2⁶³ was read as %d", n)
}

func TestSplit(t *testing.T) {
	whole := open(t, "testdata/types.gguf")
	for _, part := range []string{"split-00001-of-00002.gguf", "split-00002-of-00002.gguf"} {
		f := open(t, filepath.Join("testdata", part))
		expect.Same(t, "split-00001-of-00002.gguf", filepath.Base(f.Path()), "%s: the metadata is read from", part)
		names := map[string]string{}
		for _, tensor := range f.Tensors() {
			names[tensor.Name] = filepath.Base(tensor.Path)
			same, _ := whole.Tensor(tensor.Name)
			expect.True(t, slices.Equal(f.Float32s(tensor), whole.Float32s(same)[:512]),
				"%s: tensor %s differs from the one in one file", part, tensor.Name)
		}
		expect.Equal(t, map[string]string{"Q8_0": "split-00001-of-00002.gguf", "Q4_0": "split-00001-of-00002.gguf", "F16": "split-00002-of-00002.gguf"}, names)
	}
}
