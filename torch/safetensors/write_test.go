package safetensors_test

import (
	"bytes"
	"errors"
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

func TestWriteBytes(t *testing.T) {
	tensors := []safetensors.Tensor{
		{Name: "flag", DType: safetensors.Bool, Shape: []int64{1}, Data: []byte{1}},
		safetensors.FromFloat32s("b<&>é", []int64{1, 1}, []float32{2}),
		safetensors.FromInt64s("n", []int64{1}, []int64{-1}),
		safetensors.FromFloat32s("a", nil, []float32{1}),
	}
	header := `{"__metadata__":{"format":"pt","made":"<x>"},` +
		entry("n", "I64", "[1]", "[0,8]") + "," + entry("a", "F32", "[]", "[8,12]") + "," +
		entry("b<&>é", "F32", "[1,1]", "[12,16]") + "," + entry("flag", "BOOL", "[1]", "[16,17]") + "}"
	header += strings.Repeat(" ", (8-len(header)%8)%8)
	want := string(rawFile(header, strings.Repeat("\xff", 8)+"\x00\x00\x80\x3f"+"\x00\x00\x00\x40"+"\x01"))

	path := filepath.Join(t.TempDir(), "x.safetensors")
	for range 2 {
		must.Do(t, safetensors.Write(path, tensors, map[string]string{"made": "<x>"}))
		expect.Equal(t, want, must.Read(t, path))
		slices.Reverse(tensors)
	}
	f := must.Open(safetensors.Open(path))(t)
	v, err := f.Float32s("b<&>é")
	expect.True(t, err == nil && v[0] == 2, "read back %v, %v", v, err)
}

func TestWriteRefuses(t *testing.T) {
	ok := safetensors.FromFloat32s("w", []int64{1}, []float32{1})
	for _, tt := range []struct {
		name    string
		tensors []safetensors.Tensor
		meta    map[string]string
		want    string
	}{
		{"name twice", []safetensors.Tensor{ok, ok}, nil, `duplicate tensor "w"`},
		{"shape", []safetensors.Tensor{safetensors.FromFloat32s("w", []int64{2}, []float32{1})}, nil, `tensor "w": F32 [2] needs 8 bytes, but the data has 4`},
		{"negative", []safetensors.Tensor{safetensors.FromFloat32s("w", []int64{-1}, nil)}, nil, "negative dimension -1"},
		{"dtype", []safetensors.Tensor{{Name: "w", DType: "float"}}, nil, "unknown dtype"},
		{"no name", []safetensors.Tensor{{DType: safetensors.U8, Shape: []int64{0}}}, nil, "is reserved"},
		{"metadata name", []safetensors.Tensor{{Name: "__metadata__", DType: safetensors.U8, Shape: []int64{0}}}, nil, "is reserved"},
		{"name not UTF-8", []safetensors.Tensor{{Name: "\xff", DType: safetensors.U8, Shape: []int64{0}}}, nil, "UTF-8"},
		{"metadata not UTF-8", nil, map[string]string{"a": "\xff"}, "UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "x.safetensors")
			must.Do(t, os.WriteFile(path, []byte("old"), 0o600))
			err := safetensors.Write(path, tt.tensors, tt.meta)
			expect.Require(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), path), "error %v, want %q", err, tt.want)
			old, _ := os.ReadFile(path)
			expect.True(t, string(old) == "old", "the old file became %q", old)
			files, _ := os.ReadDir(dir)
			expect.True(t, len(files) == 1, "files left behind: %v", files)
		})
	}
	expect.True(t, safetensors.Write(filepath.Join(t.TempDir(), "no", "x.safetensors"), nil, nil) != nil, "writing into a folder that does not exist: no error")
}

func TestTensorFloat32sRefuses(t *testing.T) {
	expect.Failure(safetensors.FromInt64s("n", []int64{1}, []int64{1}).Float32s())(t, `"n": cannot convert I64`)
	expect.Failure(safetensors.FromFloat32s("w", []int64{3}, []float32{1}).Float32s())(t, "needs 12 bytes")
}

// TestNarrowing: package half rounds.
func TestNarrowing(t *testing.T) {
	const in = 1 + 1.0/2048
	for d, want := range map[safetensors.DType]float32{safetensors.F16: 1, safetensors.BF16: 1, safetensors.F32: in} {
		got := must.Get(safetensors.FromFloat32sAs(d, "x", []int64{2}, []float32{in, 1 - 1.0/512}).Float32s())(t)
		second := map[bool]float32{true: 1, false: 1 - 1.0/512}[d == safetensors.BF16] // exact in F16 alone
		expect.Equal(t, []float32{want, second}, got, d)
	}
}

func TestWriteSourcesRefuses(t *testing.T) {
	for want, data := range map[string]func() ([]byte, error){
		`tensor "x": F32 [2] needs 8 bytes, but the data has 4`: func() ([]byte, error) { return make([]byte, 4), nil },
		"the source is dry": func() ([]byte, error) { return nil, errors.New("the source is dry") },
	} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		expect.Error(t, safetensors.WriteSources(path, []safetensors.Source{{Name: "x", DType: safetensors.F32, Shape: []int64{2}, Data: data}}, nil), want, path)
		expect.Fails(os.Stat(path))(t, "half a file was left")
	}
}

// kinds is a folder with a pytorch_model.bin, written by scripts/fixtures/pickles.py.
var kinds = filepath.Join("testdata", "kinds")

// TestBinEqualsSafetensors: every dtype, views with strides and offsets, and shared storages read as the bytes of the
// same tensors in safetensors.
func TestBinEqualsSafetensors(t *testing.T) {
	m := must.Open(safetensors.OpenModel(kinds))(t)
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
	expect.True(t, strided == 5, "%d tensors with strides", strided) // column, turned, steps, turned_bf16, deep
	for pair, want := range map[[2]string]bool{{"turned", "turned"}: true, {"whole", "whole"}: true, {"whole", "rows"}: false} {
		expect.Result(m.Same(pair[0], pair[1]))(t, want, "%v are the same", pair)
	}
}

func at(t *testing.T, path string, e safetensors.Entry) []byte {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	return data[e.Offset:][:e.Size]
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
			dir := must.Folder(t, tt.files)
			_, err := safetensors.OpenModel(dir)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), dir) && !strings.Contains(err.Error(), "\n"),
				"error %v, want %q", err, tt.want)
		})
	}
}
