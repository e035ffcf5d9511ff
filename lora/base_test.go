package lora_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// baseFolder creates a model folder with some weights.
func baseFolder(t *testing.T, dir, weights string) string {
	t.Helper()
	must.Write(t, filepath.Join(dir, "model.safetensors"), weights)
	return dir
}

func saveFor(t *testing.T, dir, base string) {
	t.Helper()
	c := lora.Config{BaseModel: base, R: 1, Alpha: 1, TargetModules: lora.Modules{Names: []string{"q"}}, TaskType: lora.CausalLM}
	pair := lora.Pair{Module: "a.q", R: 1, In: 2, Out: 2, Scale: 1, A: []float32{1, 2}, B: []float32{3, 4}}
	must.Do(t, lora.Save(dir, c, []lora.Pair{pair}, nil))
}

// inFile is base_model_name_or_path as stored.
func inFile(t *testing.T, dir string) string {
	t.Helper()
	return must.JSON[struct {
		Base string `json:"base_model_name_or_path"`
	}](t, filepath.Join(dir, lora.ConfigFile)).Base
}

func loadBase(t *testing.T, dir string) lora.Config {
	t.Helper()
	return must.Get(lora.Load(dir))(t).Config
}

func TestMovedBaseModelIsFound(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, filepath.FromSlash(name)) }
	tiny, far := baseFolder(t, at("out/tiny"), "w"), baseFolder(t, at("models/qwen"), "v")
	for _, tt := range []struct{ adapter, base, want string }{
		{"out/stage", tiny, "../tiny"},
		{"out/stage/checkpoints/checkpoint-5", tiny, "../../../tiny"},
		{"out/deep/run/stage", tiny, tiny},
		{"out", tiny, tiny},
		{"runs/stage", far, far},
		{"models/run/stage", far, far},
		{"models/stage", "org/name", "org/name"},
	} {
		saveFor(t, at(tt.adapter), tt.base)
		expect.Same(t, tt.want, inFile(t, at(tt.adapter)), "%s for %s", tt.adapter, tt.base)
		expect.Same(t, tt.base, loadBase(t, at(tt.adapter)).BaseModel, "%s for %s is loaded with", tt.adapter, tt.base)
	}
	must.Do(t, os.Rename(at("out"), at("moved")))
	c := loadBase(t, at("moved/stage"))
	expect.True(t, c.BaseModel == at("moved/tiny") && c.CheckBase(c.BaseModel) == nil, "after a move: %s, %v", c.BaseModel, c.CheckBase(c.BaseModel))
	must.Do(t, os.Rename(at("runs"), at("elsewhere")))
	expect.Same(t, far, loadBase(t, at("elsewhere/stage")).BaseModel, "base model")
}

// The file does not store a relative folder as typed.
func TestBaseModelSeenFromTheWorkingFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	baseFolder(t, "models/tiny", "w")
	saveFor(t, "models/stage", "models/tiny")
	expect.Same(t, "../tiny", inFile(t, "models/stage"), "inFile")
	saveFor(t, "models/a/b/c/stage", "models/tiny")
	expect.Same(t, must.Get(filepath.Abs("models/tiny"))(t), inFile(t, "models/a/b/c/stage"), "a base model elsewhere")
	adapter := must.Get(filepath.Abs("models/stage"))(t)
	t.Chdir(t.TempDir())
	baseFolder(t, "../tiny", "v") // not the folder next to the adapter
	expect.Same(t, filepath.Join(filepath.Dir(adapter), "tiny"), loadBase(t, adapter).BaseModel, "base model")
	// PEFT's relative paths are relative to the working directory, unless the adapter's folder has them.
	baseFolder(t, "here/base", "w")
	config := filepath.Join(adapter, lora.ConfigFile)
	must.Write(t, config, strings.Replace(must.Read(t, config), "../tiny", "./here/base", 1))
	expect.Same(t, must.Get(filepath.Abs("here/base"))(t), loadBase(t, adapter).BaseModel, "base model")
}

func TestCheckBase(t *testing.T) {
	root := t.TempDir()
	base := baseFolder(t, filepath.Join(root, "base"), "w")
	saveFor(t, filepath.Join(root, "stage"), base)
	c := loadBase(t, filepath.Join(root, "stage"))
	expect.True(t, c.BaseHash != "" && c.CheckBase(base) == nil, "%q, %v", c.BaseHash, c.CheckBase(base))
	weights := filepath.Join(base, "model.safetensors")
	before := must.Get(os.Stat(weights))(t).ModTime()
	baseFolder(t, base, "v") // of the same size
	must.Do(t, os.Chtimes(weights, before, before))
	expect.NoError(t, c.CheckBase(base), "a file is read again though it has not changed")
	must.Do(t, os.Chtimes(weights, before, before.Add(time.Hour)))
	expect.Error(t, c.CheckBase(base), "than the adapter was trained on")
	must.Do(t, os.Remove(weights))
	must.Do(t, os.Mkdir(weights, 0o755))
	expect.Error(t, c.CheckBase(base), "hashing the weights")
	expect.Error(t, lora.Save(filepath.Join(root, "other"), lora.Config{BaseModel: base, R: 1, Alpha: 1, TargetModules: lora.Modules{Names: []string{"q"}}},
		[]lora.Pair{lora.Init("a.q", 1, 1, 1, 1, rand.New(rand.NewPCG(1, 2)))}, nil), "hashing the weights")
	expect.NoError(t, (lora.Config{}).CheckBase(base), "an adapter that does not say")
	// The folder disappears during a run; the adapter is still saved.
	must.Do(t, os.RemoveAll(base))
	saveFor(t, filepath.Join(root, "later"), base)
	expect.Same(t, base, inFile(t, filepath.Join(root, "later")), "inFile")
}

func TestHashWeights(t *testing.T) {
	root := must.Folder(t, map[string]string{
		"none/config.json": "{}", "one/model.safetensors": "a", "same/model.safetensors": "a", "same/pytorch_model.bin": "not read",
		"shards/model-00001-of-00002.safetensors": "a", "shards/model-00002-of-00002.safetensors": "b", "bin/pytorch_model.bin": "c",
	})
	got := map[string]string{}
	for _, name := range []string{"none", "one", "same", "shards", "bin"} {
		got[name] = must.Get(lora.HashWeights(filepath.Join(root, name)))(t)
	}
	expect.True(t, got["none"] == "" && got["one"] == got["same"] && got["one"] != got["shards"] && got["one"] != got["bin"] && len(got["bin"]) == 64, "%v", got)
}

func TestInUse(t *testing.T) {
	for _, test := range []struct {
		text string
		want map[string]string
	}{
		{`{}`, map[string]string{}},
		{
			`{"r": 8, "bias": "none", "use_dora": false, "init_lora_weights": true, "rank_pattern": {}, "modules_to_save": null,
			"peft_version": "0.21.2", "inference_mode": true, "target_modules": ["q_proj", "v_proj"]}`,
			map[string]string{"r": "8", "target_modules": `["q_proj","v_proj"]`},
		},
		{
			`{"bias": "all", "use_dora": true, "init_lora_weights": "pissa", "rank_pattern": {"q_proj": 4}}`,
			map[string]string{"bias": `"all"`, "use_dora": "true", "init_lora_weights": `"pissa"`, "rank_pattern": `{"q_proj":4}`},
		},
	} {
		dir := must.Folder(t, map[string]string{lora.ConfigFile: test.text})
		expect.Equal(t, test.want, must.Get(lora.InUse(dir))(t), test.text)
	}
	expect.Fails(lora.InUse(must.Folder(t, map[string]string{lora.ConfigFile: "[1]"})))(t, "a list was read as a config")
}

func TestTensorNames(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, safetensors.Write(filepath.Join(dir, lora.WeightsFile), []safetensors.Tensor{
		safetensors.FromFloat32s("b", []int64{2, 3}, make([]float32, 6)), safetensors.FromFloat32s("a", []int64{5}, make([]float32, 5)),
	}, nil))
	names, elements, err := lora.TensorNames(dir)
	expect.True(t, err == nil && elements == 11 && len(names) == 2, "%v with %d elements, %v", names, elements, err)
}

func TestMatch(t *testing.T) {
	names := []string{
		"encoder.layer.0.attention.self.query", "encoder.layer.0.attention.output.dense", "encoder.layer.0.output.dense",
		"encoder.layer.1.attention.self.query", "encoder.layer.1.attention.output.dense", "encoder.layer.1.output.dense", "dense",
	}
	for _, tt := range []struct {
		targets []string
		want    []int
	}{
		{[]string{"query"}, []int{0, 3}},
		{[]string{"self.query", "attention.output.dense"}, []int{0, 1, 3, 4}},
		{[]string{"output.dense"}, []int{1, 2, 4, 5}},
		{[]string{"dense"}, []int{1, 2, 4, 5, 6}},
		{[]string{"encoder.layer.1.output.dense"}, []int{5}},
	} {
		got := must.Get(lora.Match(names, tt.targets))(t)
		var want []string
		for _, i := range tt.want {
			want = append(want, names[i])
		}
		expect.Equal(t, want, got, tt.targets)
	}
	_, err := lora.Match(names, []string{"query", "uery"})
	want := `lora: target "uery" matches no module; choose from encoder.layer.*.attention.self.query, encoder.layer.*.attention.output.dense, encoder.layer.*.output.dense, dense`
	expect.True(t, err != nil && err.Error() == want, "error %v, want %s", err, want)
	expect.Fails(lora.Match(names, nil))(t, "no targets: no error")
	expect.Equal(t, []string{names[0], names[3]}, must.Get(lora.MatchSaved(names, []string{"uery"}))(t), "modules to save")
	kinds := strings.Split("a b c d e f g h i j k l m", " ")
	for n, want := range map[int]string{12: "choose from a, b, c, d, e, f, g, h, i, j, k, l", 13: "choose from a, b, c, d, e, f, g, h, i, j, k, l, …"} {
		_, err := lora.Match(kinds[:n], []string{"x"})
		expect.True(t, err != nil && strings.HasSuffix(err.Error(), want), "error %v, want %s", err, want)
	}
}

func TestInit(t *testing.T) {
	p := lora.Init("m", 64, 32, 8, 2, rand.New(rand.NewPCG(1, 2)))
	expect.Require(t, p.Module == "m" && len(p.A) == 8*64 && len(p.B) == 32*8, "%s, %d, %d", p.Module, len(p.A), len(p.B))
	rng := rand.New(rand.NewPCG(1, 2))
	for _, a := range p.A { // uniform in ±1/√64
		expect.Require(t, a == float32((2*rng.Float64()-1)*0.125), "A has %g", a)
	}
	for _, b := range p.B {
		expect.Require(t, b == 0, "B is not zero")
	}
}

func TestMergeInto(t *testing.T) {
	p := lora.Pair{
		Module: "m", R: 2, In: 3, Out: 2, Scale: 0.5,
		A: []float32{1, 2, 3, 4, 5, 6}, // [2, 3]
		B: []float32{1, 0, -1, 2},      // [2, 2]
	}
	w := []float32{10, 20, 30, 40, 50, 60}
	p.MergeInto(w)
	// B·A = [[1 2 3] [7 8 9]]
	expect.Equal(t, []float32{10.5, 21, 31.5, 43.5, 54, 64.5}, w)
	w = w[:1]
	lora.Pair{Module: "one", R: 1, In: 1, Out: 1, Scale: 0.5, A: []float32{2}, B: []float32{3}}.MergeInto(w)
	expect.Equal(t, []float32{13.5}, w)
}

func TestMergeIntoPanics(t *testing.T) {
	for experts, want := range []string{"module m: the weight has 5 elements, [2 3] needs 6", "module m of 1 experts"} {
		func() {
			defer func() { expect.Contains(t, fmt.Sprint(recover()), want) }()
			p := lora.Init("m", 3, 2, 1, 1, rand.New(rand.NewPCG(1, 2)))
			p.Experts = experts
			p.MergeInto(make([]float32, 5))
		}()
	}
}
