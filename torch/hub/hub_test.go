package hub_test

import (
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/hub"
)

func TestCustomModels(t *testing.T) {
	cache, here := t.TempDir(), t.TempDir()
	t.Setenv("RLTRAIN_CACHE", cache)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_HUB_OFFLINE", "1")
	t.Chdir(here)
	must.Write(t, filepath.Join(cache, "models", "org", "one", "config.json"), "{}")
	must.Write(t, filepath.Join(cache, "models", "org", "twin", "config.json"), "{}")
	must.Write(t, filepath.Join(cache, "models", "other", "twin", "config.json"), "{}")
	must.Write(t, filepath.Join(here, "mine", "config.json"), "{}")
	must.Write(t, filepath.Join(here, "adapter", "adapter_config.json"), "{}")
	must.Write(t, filepath.Join(here, "empty", "README.md"), "")
	must.Write(t, filepath.Join(here, "file"), "")
	for _, tc := range []struct{ model, dir, name, want string }{
		{model: "mine", dir: filepath.Join(here, "mine"), name: filepath.Join(here, "mine")},
		{model: "org/one", dir: filepath.Join(cache, "models", "org", "one"), name: "org/one"},
		{model: "one", dir: filepath.Join(cache, "models", "org", "one"), name: "org/one"},
		{model: "twin", want: "is ambiguous"},
		{model: "nowhere", want: "is neither a folder nor in"},
		{model: "org/nowhere", want: "HF_HUB_OFFLINE forbids downloads"},
		{model: "org/one@v1", want: "nothing of org/one@v1 is in the cache"}, // rltrain's cache has no revisions
		{model: "empty", want: "neither a config.json nor a GGUF file"},
		{model: "adapter", want: "it is an adapter, not a base model"},
		{model: "file", want: "does not end in .gguf"},
		{model: "../mine", want: "does not exist"},
		{model: "", want: "does not exist"},
		{model: "a/b/c", want: "does not exist"},
	} {
		got, err := new(hub.Client).Model(t.Context(), tc.model, hub.Weights)
		if err == nil {
			err = got.CheckBase()
		}
		if tc.want != "" {
			expect.Error(t, err, tc.want)
			continue
		}
		want := (hub.Model{Dir: tc.dir, Name: tc.name})
		expect.True(t, err == nil && got == want, "%q: got %+v, %v; want %+v", tc.model, got, err, want)
	}
}
