package safetensors_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/safetensors"
)

const (
	shard1 = "model-00001-of-00002.safetensors"
	shard2 = "model-00002-of-00002.safetensors"
)

// writeShards writes a (in the first shard) and b, c (in the second) with an index.
func writeShards(t *testing.T, index string) string {
	t.Helper()
	dir := t.TempDir()
	one := func(name string, v float32) safetensors.Tensor {
		return safetensors.FromFloat32s(name, []int64{1}, []float32{v})
	}
	for file, tensors := range map[string][]safetensors.Tensor{
		shard1: {one("a", 1)},
		shard2: {one("b", 2), one("c", 3)},
	} {
		must.Do(t, safetensors.Write(filepath.Join(dir, file), tensors, nil))
	}
	must.Write(t, filepath.Join(dir, "model.safetensors.index.json"), index)
	return dir
}

func TestOpenModelSharded(t *testing.T) {
	dir := writeShards(t, `{"metadata":{"total_size":12,"more":[1,{"x":null}]},"weight_map":{"c":"`+shard2+`","a":"`+shard1+`","b":"`+shard2+`"}}`)
	m := must.Open(safetensors.OpenModel(dir))(t)
	expect.Equal(t, []string{"a", "b", "c"}, m.Names())
	path, e, ok := m.Entry("c")
	expect.True(t, ok && path == filepath.Join(dir, shard2) && e.Size == 4, "c is at %s, %+v, %v", path, e, ok)
	v, err := m.Float32s("c")
	expect.True(t, err == nil && v[0] == 3, "c = %v, %v", v, err)
	_, _, ok = m.Entry("d")
	expect.True(t, !ok, "d exists")
	expect.Failure(m.Float32s("d"))(t, `no tensor "d"`)
}

func TestOpenModelPrefersSingle(t *testing.T) {
	dir := writeShards(t, "nonsense")
	must.Do(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), []safetensors.Tensor{safetensors.FromInt64s("x", nil, []int64{1})}, nil))
	m := must.Open(safetensors.OpenModel(dir))(t)
	expect.Equal(t, []string{"x"}, m.Names())
	expect.Same(t, filepath.Join(dir, "model.safetensors"), m.Path(), "path")
}

func TestOpenModelRefuses(t *testing.T) {
	weightMap := func(a, b, c string) string {
		return `{"weight_map":{"a":"` + a + `","b":"` + b + `","c":"` + c + `"}}`
	}
	for _, tt := range []struct{ name, index, want string }{
		{"not JSON", "{", "unexpected end of"},
		{"no map", `{"metadata":{}}`, "weight_map is missing"},
		{"text after", weightMap(shard1, shard2, shard2) + "x", "after the JSON object"},
		{"not UTF-8", "{\"\xff\":1}", "UTF-8"},
		{"name twice", `{"weight_map":{"a":"` + shard1 + `","a":"` + shard2 + `"}}`, `duplicate key "a"`},
		{"file missing", weightMap("gone.safetensors", shard2, shard2), "gone.safetensors"},
		{"tensor not in the file", `{"weight_map":{"a":"` + shard1 + `","b":"` + shard2 + `","c":"` + shard2 + `","d":"` + shard1 + `"}}`, `tensor "d" is missing in ` + shard1},
		{"tensor elsewhere", weightMap(shard1, shard1, shard2), `tensor "b" is in ` + shard2 + ", but weight_map says " + shard1},
		{"tensor left out", `{"weight_map":{"a":"` + shard1 + `","b":"` + shard2 + `"}}`, `tensor "c" of ` + shard2 + " is missing in weight_map"},
		{"parent", weightMap("../"+shard1, shard2, shard2), "same folder"},
		{"absolute", weightMap("/etc/x.safetensors", shard2, shard2), "same folder"},
		{"subfolder", weightMap("sub/"+shard1, shard2, shard2), "same folder"},
		{"backslash", weightMap(`..\\`+shard1, shard2, shard2), "same folder"},
		{"dots", weightMap("..", shard2, shard2), "same folder"},
		{"other kind", weightMap("model.bin", shard2, shard2), "same folder"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := writeShards(t, tt.index)
			_, err := safetensors.OpenModel(dir)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), dir) && !strings.Contains(err.Error(), "\n"),
				"error %v, want %q", err, tt.want)
		})
	}
}

func TestOpenModelTensorInTwoFiles(t *testing.T) {
	dir := writeShards(t, `{"weight_map":{"a":"`+shard1+`","b":"`+shard2+`","c":"`+shard2+`"}}`)
	b := safetensors.FromFloat32s("b", []int64{1}, []float32{9})
	a := safetensors.FromFloat32s("a", []int64{1}, []float32{1})
	must.Do(t, safetensors.Write(filepath.Join(dir, shard1), []safetensors.Tensor{a, b}, nil))
	expect.Failure(safetensors.OpenModel(dir))(t, `tensor "b" is in `+shard1)
}

func TestOpenModelNoWeights(t *testing.T) {
	dir := t.TempDir()
	expect.Failure(safetensors.OpenModel(dir))(t, dir+" has no weights; want model.safetensors")
}
