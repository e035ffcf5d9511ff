package lora_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
)

// baseFolder creates a model folder with some weights.
func baseFolder(t *testing.T, dir, weights string) string {
	t.Helper()
	must.Do(t, os.MkdirAll(dir, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), []byte(weights), 0o644))
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
	data := must.Get(os.ReadFile(filepath.Join(dir, lora.ConfigFile)))(t)
	var c struct {
		Base string `json:"base_model_name_or_path"`
	}
	must.Do(t, json.Unmarshal(data, &c))
	return c.Base
}

func loadBase(t *testing.T, dir string) lora.Config {
	t.Helper()
	c, _, _, err := lora.Load(dir)
	must.Do(t, err)
	return c
}

func TestMovedBaseModelIsFound(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, filepath.FromSlash(name)) }
	tiny, far := baseFolder(t, at("out/tiny"), "w"), baseFolder(t, at("models/qwen"), "v")
	tests := []struct{ adapter, base, want string }{
		{"out/stage", tiny, "../tiny"},
		{"out/stage/checkpoints/checkpoint-5", tiny, "../../../tiny"},
		{"out/deep/run/stage", tiny, tiny},
		{"runs/stage", far, far},
		{"models/run/stage", far, far},
		{"models/stage", "org/name", "org/name"},
	}
	for _, tt := range tests {
		saveFor(t, at(tt.adapter), tt.base)
		expect.Same(t, tt.want, inFile(t, at(tt.adapter)), "%s for %s", tt.adapter, tt.base)
		expect.Same(t, tt.base, loadBase(t, at(tt.adapter)).BaseModel, "%s for %s is loaded with", tt.adapter, tt.base)
	}
	must.Do(t, os.Rename(at("out"), at("moved")))
	c := loadBase(t, at("moved/stage"))
	expect.True(t, c.BaseModel == at("moved/tiny") && c.CheckBase(c.BaseModel) == nil,
		"after a move: %s, %v", c.BaseModel, c.CheckBase(c.BaseModel))
	must.Do(t, os.Rename(at("runs"), at("elsewhere")))
	if c := loadBase(t, at("elsewhere/stage")); c.BaseModel != far {
		t.Error(c.BaseModel)
	}
}

// The file does not store a relative folder as typed.
func TestBaseModelSeenFromTheWorkingFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	baseFolder(t, "models/tiny", "w")
	saveFor(t, "models/stage", "models/tiny")
	expect.Same(t, "../tiny", inFile(t, "models/stage"), "inFile")
	adapter := must.Get(filepath.Abs("models/stage"))(t)
	t.Chdir(t.TempDir())
	baseFolder(t, "../tiny", "v") // not the folder next to the adapter
	if c := loadBase(t, adapter); c.BaseModel != filepath.Join(filepath.Dir(adapter), "tiny") {
		t.Error(c.BaseModel)
	}
	// PEFT's relative paths are relative to the working directory, unless the adapter's folder has them.
	baseFolder(t, "here/base", "w")
	data := must.Get(os.ReadFile(filepath.Join(adapter, lora.ConfigFile)))(t)
	must.Do(t, os.WriteFile(filepath.Join(adapter, lora.ConfigFile), []byte(strings.Replace(string(data), "../tiny", "./here/base", 1)), 0o644))
	here, err := filepath.Abs("here/base")
	if c := loadBase(t, adapter); c.BaseModel != here || err != nil {
		t.Error(c.BaseModel, err)
	}
}

func TestCheckBase(t *testing.T) {
	root := t.TempDir()
	base := baseFolder(t, filepath.Join(root, "base"), "w")
	saveFor(t, filepath.Join(root, "stage"), base)
	c := loadBase(t, filepath.Join(root, "stage"))
	expect.True(t, c.BaseHash != "" && c.CheckBase(base) == nil, "%q, %v", c.BaseHash, c.CheckBase(base))
	baseFolder(t, base, "v") // of the same size
	later := time.Now().Add(time.Hour)
	must.Do(t, os.Chtimes(filepath.Join(base, "model.safetensors"), later, later))
	expect.Error(t, c.CheckBase(base), "than the adapter was trained on")
	expect.NoError(t, (lora.Config{}).CheckBase(base), "an adapter that does not say")
	// The folder disappears during a run; the adapter is still saved.
	must.Do(t, os.RemoveAll(base))
	saveFor(t, filepath.Join(root, "later"), base)
	expect.Same(t, base, inFile(t, filepath.Join(root, "later")), "inFile")
}

func TestHashWeights(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, filepath.FromSlash(name))
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("none/config.json", "{}")
	write("one/model.safetensors", "a")
	write("same/model.safetensors", "a")
	write("same/pytorch_model.bin", "not read")
	write("shards/model-00001-of-00002.safetensors", "a")
	write("shards/model-00002-of-00002.safetensors", "b")
	write("bin/pytorch_model.bin", "c")
	got := map[string]string{}
	for _, name := range []string{"none", "one", "same", "shards", "bin"} {
		hash := must.Get(lora.HashWeights(filepath.Join(root, name)))(t)
		got[name] = hash
	}
	if got["none"] != "" || got["one"] != got["same"] || got["one"] == got["shards"] || got["one"] == got["bin"] || len(got["bin"]) != 64 {
		t.Error(got)
	}
}
