package hub

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/wheel"
)

// fakeIndex serves one wheel, which contains a single-file model, and makes it the only known model.
type fakeIndex struct {
	*httptest.Server
	wheel    []byte
	requests []string
}

func newIndex(t *testing.T) *fakeIndex {
	t.Helper()
	newFake(t)
	model := []byte(`{"model_type": "llama"}`)
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, content := range map[string]string{"p/model/config.json": string(model), "p/model/sub/x.txt": "x", "p/__init__.py": "no", "p-1.dist-info/LICENSE": "licence"} {
		f := must.Get(w.Create(name))(t)
		fmt.Fprint(f, content)
	}
	must.Do(t, w.Close())
	i := &fakeIndex{wheel: b.Bytes()}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.requests = append(i.requests, r.URL.Path+" "+r.Header.Get("Range"))
		if r.URL.Path == "/simple/p/" {
			fmt.Fprint(w, `<html><a class="x" href="../../files/p-0.whl#sha256=0">p-0.whl</a> <a href="../../files/p-1.whl#x&amp;y">p-1.whl</a></html>`)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(i.wheel))
	}))
	t.Cleanup(i.Close)
	t.Setenv("PIP_INDEX_URL", i.URL+"/simple/")
	t.Setenv("PIP_CERT", "")
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	old := known
	t.Cleanup(func() { known = old })
	known = []Known{{
		Name: "word", Folder: "org/word", Licence: "MIT", Bytes: 5, part: wheel.Part{
			Wheel:  wheel.Wheel{Project: "p", File: "p-1.whl", SHA256: sha256Of(b.String()), Size: int64(b.Len())},
			Places: map[string]string{"p/model/": "", "p-1.dist-info/LICENSE": "LICENSE"},
		},
		sums: map[string]string{"config.json": sha256Of(string(model))},
	}}
	return i
}

func TestPull(t *testing.T) {
	i := newIndex(t)
	dir := filepath.Join(os.Getenv("RLTRAIN_CACHE"), "models", "org", "word")
	list, err := ListCached()
	expect.True(t, err == nil && len(list) == 1 && list[0].Dir == "" && list[0].Licence == "MIT", "before: %+v, %v", list, err)
	for _, name := range []string{"org/word", "word", "org/word"} {
		m, err := new(Client).Model(t.Context(), name, Weights)
		expect.Require(t, err == nil && m.Dir == dir && m.Name == "org/word", "%s: %+v, %v", name, m, err)
	}
	expect.Same(t, 2, len(i.requests), "the model was fetched more than once: %q", i.requests)
	for name, want := range map[string]string{"config.json": `{"model_type": "llama"}`, "sub/x.txt": "x", "LICENSE": "licence"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		expect.True(t, string(got) == want, "%s: %q, %v", name, got, err)
	}
	expect.Fails(os.Stat(filepath.Join(dir, "__init__.py")))(t, "other members were unpacked")
	if left, _ := filepath.Glob(filepath.Join(os.Getenv("RLTRAIN_CACHE"), "downloads", "*.whl*")); len(left) > 1 { // the lock file stays
		t.Errorf("downloads were left: %q", left)
	}
	list, err = ListCached()
	expect.True(t, err == nil && len(list) == 1 && list[0].Dir == dir, "after: %+v, %v", list, err)
}

func TestPullRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func()
		want    []string
	}{
		"another model":     {func() { known[0].sums["config.json"] = sha256Of("") }, []string{"config.json", "SHA-256"}},
		"offline":           {func() { os.Setenv("HF_HUB_OFFLINE", "1") }, []string{"HF_HUB_OFFLINE", "rltrain models pull word"}},
		"a model not known": {func() { known[0].Name = "another" }, []string{`"word"`, "another"}},
	} {
		t.Run(name, func(t *testing.T) {
			newIndex(t)
			c.prepare()
			_, err := new(Client).Pull(t.Context(), "word")
			expect.Require(t, err != nil, "no error")
			expect.Contains(t, err.Error(), c.want...)
			expect.Fails(os.Stat(filepath.Join(os.Getenv("RLTRAIN_CACHE"), "models", "org", "word")))(t, "a folder was left")
		})
	}
}

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
		got, err := new(Client).Model(t.Context(), tc.model, Weights)
		if err == nil {
			err = got.CheckBase()
		}
		if tc.want != "" {
			expect.Error(t, err, tc.want)
			continue
		}
		want := (Model{Dir: tc.dir, Name: tc.name})
		expect.True(t, err == nil && got == want, "%q: got %+v, %v; want %+v", tc.model, got, err, want)
	}
}
