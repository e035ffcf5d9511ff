package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// tinyGGUF is the content of a small GGUF model.
func tinyGGUF(t *testing.T) string {
	t.Helper()
	data := must.Get(os.ReadFile(filepath.Join("..", "transformers", "testdata", "gguf", "llama-Q4_1.gguf")))(t)
	return string(data)
}

func put(t *testing.T, path, content string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(content), 0o644))
}

func TestGGUFModels(t *testing.T) {
	content := tinyGGUF(t)
	h := newFake(t)
	here := must.Get(os.Getwd())(t)
	h.refs["models/org/one@main"] = commit1
	h.files[commit1] = map[string]string{"a.Q4_1.gguf": content, "mmproj-a.gguf": "x", "README.md": ""}
	h.refs["models/org/many@main"] = commit2
	h.files[commit2] = map[string]string{"a.gguf": content, "b.gguf": content, "model.safetensors": "x", "config.json": "{}"}
	put(t, "one/m.gguf", content)
	put(t, "many/a.gguf", content)
	put(t, "many/b.gguf", content)
	put(t, "both/a.gguf", content)
	put(t, "both/config.json", "{}")
	put(t, "both/model.safetensors", "x")
	put(t, "bad.gguf", content[:100])
	put(t, "weights.bin", content)
	for _, c := range []struct{ model, file, name, want string }{
		{model: "one/m.gguf", name: filepath.Join(here, "one/m.gguf")},
		{model: "one", name: filepath.Join(here, "one/m.gguf")},
		{model: "many", file: "b.gguf", name: filepath.Join(here, "many/b.gguf")},
		{model: "both", file: "a.gguf", name: filepath.Join(here, "both/a.gguf")},
		{model: "both", name: filepath.Join(here, "both")},
		{model: "org/one", name: "org/one/a.Q4_1.gguf"},
		{model: "org/one/a.Q4_1.gguf", name: "org/one/a.Q4_1.gguf"},
		{model: "org/many", file: "b.gguf", name: "org/many/b.gguf"},
		{model: "org/many/a.gguf", name: "org/many/a.gguf"},
		{model: "many", want: "--gguf-file a.gguf"},
		{model: "many", file: "a", want: ".gguf"},
		{model: "one/m.gguf", file: "m.gguf", want: "one/m.gguf"},
		{model: "smollm2", file: "m.gguf", want: "smollm2"},
		{model: "many", file: "c.gguf", want: "c.gguf"},
		{model: "org/many", file: "c.gguf", want: "c.gguf"},
		{model: "org/one/none.gguf", want: "none.gguf"},
		{model: "bad.gguf", want: "cut short"},
		{model: "weights.bin", want: ".gguf"},
	} {
		name, err := WithFile(c.model, c.file)
		var got Model
		if err == nil {
			got, err = new(Client).Model(t.Context(), name, Weights)
		}
		if c.want != "" {
			expect.Error(t, err, c.want)
			continue
		}
		if err != nil || got.Name != c.name {
			t.Errorf("%s: got %+v, %v; want %s", c.model, got, err, c.name)
			continue
		}
		if strings.HasSuffix(c.name, ".gguf") && !(exists(filepath.Join(got.Dir, "config.json")) && exists(filepath.Join(got.Dir, "model.gguf"))) {
			t.Errorf("%s: %s is not a model folder", c.model, got.Dir)
		}
	}
}

// A changed file is read again.
func TestGGUFChanges(t *testing.T) {
	content := tinyGGUF(t)
	newFake(t)
	put(t, "m.gguf", content)
	first := must.Get(new(Client).Model(t.Context(), "m.gguf", Weights))(t)
	again, err := new(Client).Model(t.Context(), "m.gguf", Weights)
	expect.True(t, err == nil && again == first, "%+v, %v; want %+v", again, err, first)
	put(t, "m.gguf", content+"\x00")
	other, err := new(Client).Model(t.Context(), "m.gguf", Weights)
	expect.True(t, err == nil && other.Dir != first.Dir, "%+v, %v; want another folder", other, err)
}
