package safetensors_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// kinds is a folder with a pytorch_model.bin, written by scripts/fixtures/pickles.py.
var kinds = filepath.Join("testdata", "kinds")

func openKinds(t *testing.T) *safetensors.Model {
	t.Helper()
	m := must.Get(safetensors.OpenModel(kinds))(t)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// TestBinEqualsSafetensors: every dtype, views with strides and offsets, and shared storages read as the bytes of the
// same tensors in safetensors.
func TestBinEqualsSafetensors(t *testing.T) {
	m := openKinds(t)
	want := must.Open(safetensors.Open(filepath.Join(kinds, "same.safetensors")))(t)
	diff := cmp.Diff(slices.Sorted(slices.Values(want.Names())), slices.Sorted(slices.Values(m.Names())))
	expect.Require(t, diff == "", "%v", diff)
	first := m.Names()[0]
	expect.True(t, first == "f32", "the first tensor is %s, want the dictionary's", first)
	strided := 0
	for _, name := range m.Names() {
		path, e, _ := m.Entry(name)
		same, _ := want.Lookup(name)
		if e.DType != same.DType || !slices.Equal(e.Shape, same.Shape) || e.Size != same.Size {
			t.Errorf("%s is %+v, want %+v", name, e, same)
			continue
		}
		got := must.Get(m.Bytes(name))(t)
		data := must.Get(want.Bytes(name))(t)
		expect.True(t, bytes.Equal(got, data), "%s is %x, want %x", name, got, data)
		if e.Strides != nil {
			strided++
		} else if !bytes.Equal(at(t, path, e), data) {
			t.Errorf("%s: the bytes at %d differ", name, e.Offset)
		}
		if e.DType != safetensors.F32 && e.DType != safetensors.BF16 {
			continue
		}
		floats := must.Get(m.Float32s(name))(t)
		wide := must.Get(want.Float32s(name))(t)
		expect.True(t, slices.Equal(floats, wide), "%s is %v, want %v", name, floats, wide)
	}
	if strided != 5 { // column, turned, steps, turned_bf16, deep
		t.Errorf("%d tensors with strides", strided)
	}
	for pair, want := range map[[2]string]bool{{"turned", "turned"}: true, {"whole", "whole"}: true, {"whole", "rows"}: false} {
		expect.Result(m.Same(pair[0], pair[1]))(t, want, "%v are the same", pair)
	}
}

func at(t *testing.T, path string, e safetensors.Entry) []byte {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	return data[e.Offset:][:e.Size]
}

func TestOpenModelPrefersSafetensors(t *testing.T) {
	dir := t.TempDir()
	must.Write(t, filepath.Join(dir, "pytorch_model.bin"), "nonsense")
	must.Do(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), []safetensors.Tensor{safetensors.FromInt64s("x", nil, []int64{1})}, nil))
	m := must.Open(safetensors.OpenModel(dir))(t)
	expect.Equal(t, []string{"x"}, m.Names())
}

func TestOpenModelRefusesBin(t *testing.T) {
	whole := must.Get(os.ReadFile(filepath.Join(kinds, "pytorch_model.bin")))(t)
	old := must.Get(os.ReadFile(filepath.Join(kinds, "legacy.bin")))(t)
	const index = "pytorch_model.bin.index.json"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"nothing", map[string]string{"pytorch_model.bin": ""}, "not a torch.save file: no zip archive"},
		{"cut", map[string]string{"pytorch_model.bin": string(whole[:len(whole)-30])}, "truncated"},
		{"legacy", map[string]string{"pytorch_model.bin": string(old)}, "before PyTorch 1.6"},
		{"index of other files", map[string]string{index: `{"weight_map":{"a":"model.safetensors"}}`}, "want a .bin file in the same folder"},
		{"index elsewhere", map[string]string{index: `{"weight_map":{"a":"../x.bin"}}`}, "want a .bin file in the same folder"},
		{"index without its file", map[string]string{index: `{"weight_map":{"a":"x.bin"}}`}, "x.bin: no such file"},
		{"index that lies", map[string]string{index: `{"weight_map":{"f32":"x.bin"}}`, "x.bin": string(whole)}, `tensor "f16" of x.bin is missing in weight_map`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				must.Write(t, filepath.Join(dir, name), text)
			}
			_, err := safetensors.OpenModel(dir)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), dir) && !strings.Contains(err.Error(), "\n"),
				"error %v, want %q", err, tt.want)
		})
	}
}
