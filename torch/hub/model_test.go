package hub

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/wheel"
)

const name = "models/org/name@main"

// tinyModel has two shards, an index, and files that are not needed.
func tinyModel() map[string]string {
	return map[string]string{
		"config.json": "{}", "tokenizer.json": `{"a":1}`, "generation_config.json": "{ }",
		"additional_chat_templates/tool_use.jinja": "{{ tools }}",
		"model.safetensors.index.json":             `{"metadata":{},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors","c":"model-00001-of-00002.safetensors"}}`,
		"model-00001-of-00002.safetensors":         "first shard", "model-00002-of-00002.safetensors": "second shard",
		"pytorch_model.bin": "pickle", "onnx/model.onnx": "graph", "README.md": "# card", "consolidated.safetensors": "again",
	}
}

func TestModelFillsTheCacheAsPythonDoes(t *testing.T) {
	h, c := newFake(t), newTester()
	t.Setenv("HF_TOKEN", "hf_secret")
	h.publish(commit1, tinyModel(), name)
	m := c.get(t, "org/name")
	root := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--name")
	expect.Same(t, (Model{Dir: filepath.Join(root, "snapshots", commit1), Name: "org/name", Commit: commit1}), m, "m")
	files := tinyModel()
	for _, name := range []string{"pytorch_model.bin", "onnx/model.onnx", "README.md", "consolidated.safetensors"} {
		delete(files, name)
	}
	got, absent, blobs := map[string]string{}, 0, map[string]bool{}
	must.Do(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		switch top, rest, _ := strings.Cut(rel, "/"); top {
		case "snapshots":
			_, file, _ := strings.Cut(rest, "/")
			target, err := os.Readlink(path)
			want := strings.Repeat("../", 2+strings.Count(file, "/")) + "blobs/"
			expect.True(t, err == nil && strings.HasPrefix(target, want), "%s leads to %q, %v; want a link below %s", file, target, err, want)
			got[file] = must.Read(t, path)
		case "blobs":
			blobs[rest] = true
		case ".no_exist":
			absent++
		case "refs":
			text := must.Read(t, path)
			expect.True(t, rest == "main" && text == commit1, "refs/%s is %q", rest, text)
		default:
			t.Errorf("unexpected %s", rel)
		}
		return nil
	}))
	expect.Equal(t, files, got)
	wanted := map[string]bool{}
	for name, content := range files {
		if large(name) {
			wanted[sha256Of(content)] = true
		} else {
			wanted[gitOf(content)] = true
		}
	}
	expect.Equal(t, wanted, blobs, "blobs")
	want := len(smallFiles) - 3
	expect.True(t, absent == want, "%d files are known to be absent, want %d", absent, want)
	expect.True(t, h.leaks <= 0, "the store saw the token %d times", h.leaks)
	total := int64(0)
	for _, content := range files {
		total += int64(len(content))
	}
	expect.True(t, c.done == total && c.total == total, "progress ends at %d of %d, want %d", c.done, c.total, total)
	h.taken()
	c.get(t, "org/name")
	expect.Equal(t, []string{"GET /api/models/org/name/revision/main"}, h.taken(), "second call")
	c.get(t, "org/name@"+commit1)
	log := h.taken()
	expect.True(t, len(log) == 0, "a cached commit is requested again: %q", log)
	expect.True(t, len(c.warnings)+len(c.pauses) == 0, "warnings %q, pauses %v", c.warnings, c.pauses)
}

func TestModelFiles(t *testing.T) {
	for what, tc := range map[string]struct {
		files map[string]string
		need  Need
		want  []string
		err   string
	}{
		"one file before shards": {
			files: map[string]string{"config.json": "{}", "model.safetensors": "w", "model.safetensors.index.json": "{}", "pytorch_model.bin": "p"},
			want:  []string{"config.json", "model.safetensors"},
		},
		"pickles where there is nothing better": {
			files: map[string]string{"config.json": "{}", "pytorch_model.bin": "p", "vocab.txt": "v", "tf_model.h5": "t"},
			want:  []string{"config.json", "pytorch_model.bin", "vocab.txt"},
		},
		"shards of pickles": {
			files: map[string]string{
				"config.json": "{}", "pytorch_model.bin.index.json": `{"weight_map":{"a":"pytorch_model-00001-of-00001.bin"}}`, "pytorch_model-00001-of-00001.bin": "p",
			},
			want: []string{"config.json", "pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"},
		},
		"adapter": {
			files: map[string]string{"adapter_config.json": "{}", "adapter_model.safetensors": "ab", "adapter_model.bin": "p", "optimizer.bin": "o"},
			want:  []string{"adapter_config.json", "adapter_model.safetensors"},
		},
		"pickled adapter": {files: map[string]string{"adapter_config.json": "{}", "adapter_model.bin": "p"},
			want: []string{"adapter_config.json", "adapter_model.bin"}},
		"encoder with pooling": {
			files: map[string]string{"config.json": "{}", "modules.json": "[]", "1_Pooling/config.json": "{}", "model.safetensors": "w"},
			want:  []string{"1_Pooling/config.json", "config.json", "model.safetensors", "modules.json"},
		},
		"no weights wanted": {
			files: map[string]string{"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "w"},
			need:  NoWeights, want: []string{"config.json", "tokenizer.json"},
		},
		"no weights there":   {files: map[string]string{"config.json": "{}", "tf_model.h5": "t"}, err: "model org/name: it has no weights in files of safetensors or PyTorch"},
		"no model":           {files: map[string]string{"README.md": "# card"}, err: "it has neither config.json nor adapter_config.json"},
		"a lost shard":       {files: map[string]string{"config.json": "{}", "model.safetensors.index.json": `{"weight_map":{"a":"b.safetensors"}}`}, err: "it has no file b.safetensors"},
		"a shard outside":    {files: map[string]string{"config.json": "{}", "model.safetensors.index.json": `{"weight_map":{"a":"../b.safetensors"}}`}, err: `weight_map puts tensor "a" in "../b.safetensors"`},
		"an index of lists":  {files: map[string]string{"config.json": "{}", "model.safetensors.index.json": `{"weight_map":[]}`}, err: `model.safetensors.index.json: weight_map: got [`},
		"names that lead up": {files: map[string]string{"config.json": "{}", "../model.safetensors": "w", "a/../../model.safetensors": "w"}, err: "it has no weights"},
	} {
		h, c := newFake(t), newTester()
		h.publish(commit1, tc.files, name)
		m, err := c.Model(t.Context(), "org/name", tc.need)
		if tc.err != "" {
			wantError(t, what, err, tc.err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		found, err := store{dir: filepath.Dir(filepath.Dir(m.Dir))}.files(commit1)
		diff := cmp.Diff(tc.want, slices.Sorted(maps.Keys(found)))
		expect.True(t, diff == "" && err == nil, "%s: %s%v", what, diff, err)
	}
}

func TestRevisions(t *testing.T) {
	h, c := newFake(t), newTester()
	first, second := tinyModel(), tinyModel()
	second["config.json"] = `{"new":true}`
	h.publish(commit1, first, name, "models/org/name@v1/x")
	h.publish(commit2, second)
	c.get(t, "org/name")
	h.taken()
	h.publish(commit2, second, name)
	m := c.get(t, "org/name")
	expect.True(t, m.Commit == commit2 && must.Read(t, filepath.Join(m.Dir, "config.json")) == second["config.json"], "after main moved: %+v", m)
	if log := h.taken(); slices.ContainsFunc(log, func(line string) bool {
		return strings.HasPrefix(line, "STORE") || strings.HasPrefix(line, "GET") && strings.Contains(line, "/resolve/") && !strings.HasSuffix(line, "/config.json")
	}) {
		t.Errorf("unchanged files were downloaded again: %q", log)
	}
	m = c.get(t, "org/name@v1/x")
	expect.True(t, m.Commit == commit1 && m.Name == "org/name", "v1/x is %+v", m)
	refs := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--name", "refs")
	expect.Same(t, commit2+commit1, must.Read(t, filepath.Join(refs, "main"))+must.Read(t, filepath.Join(refs, "v1", "x")), "refs")
	c.refuses(t, "org/name@v9", `model org/name@v9: it has no branch, tag or commit "v9"`)
}

func TestOffline(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, tinyModel(), name)
	online := c.get(t, "org/name")
	h.taken()
	t.Setenv("HF_HUB_OFFLINE", "1")
	for _, model := range []string{"org/name", "org/name@" + commit1} {
		expect.Same(t, online, c.get(t, model), "offline")
	}
	c.refuses(t, "org/name@v1", "nothing of org/name@v1 is in the cache", "HF_HUB_OFFLINE forbids downloads")
	must.Do(t, os.Remove(filepath.Join(online.Dir, "model-00002-of-00002.safetensors")))
	c.refuses(t, "org/name", "model-00002-of-00002.safetensors: not in the cache", "HF_HUB_OFFLINE forbids downloads")
	must.Do(t, os.Remove(filepath.Join(online.Dir, "model.safetensors.index.json")))
	c.refuses(t, "org/name", "weights: not in the cache")
	must.Do(t, os.WriteFile(filepath.Join(online.Dir, "..", "..", "refs", "main"), []byte("not a commit"), 0o644))
	c.refuses(t, "org/name", `"not a commit", which is not a commit; remove the file`)
	log := h.taken()
	expect.True(t, len(log) == 0, "requests were made: %q", log)
}

func TestUnreachable(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, tinyModel(), name)
	online := c.get(t, "org/name")
	down := func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true }
	gone := func(w http.ResponseWriter, _ *http.Request) bool {
		fail(w, http.StatusNotFound, "RevisionNotFound")
		return true
	}
	h.answer = down
	if m := c.get(t, "org/name"); m != online || len(c.warnings) != 1 || !strings.Contains(c.warnings[0], "502 Bad Gateway") || len(c.pauses) > 0 {
		t.Errorf("Hub down: %+v with warnings %q and pauses %v", m, c.warnings, c.pauses)
	}
	h.answer = gone
	c.refuses(t, "org/name", "it has no branch, tag or commit")
	h.answer = nil
	h.hub.Close()
	c.warnings = nil
	m := c.get(t, "org/name")
	expect.True(t, m == online && len(c.warnings) == 1 && len(c.pauses) <= 0, "no Hub: %+v with warnings %q and pauses %v", m, c.warnings, c.pauses)
	c.refuses(t, "org/other", `model "org/other" is neither a folder nor in`, "no connection to "+h.hub.URL)
}

// A cache filled by other programs: files instead of links, blobs that are links, truncated files, dangling links.
func TestOddCaches(t *testing.T) {
	h, c := newFake(t), newTester()
	files := map[string]string{"config.json": "{}", "tokenizer.json": "{ }", "vocab.txt": "words", "model.safetensors": "weights"}
	h.publish(commit1, files, name)
	root := filepath.Join(os.Getenv("HF_HOME"), "hub")
	snapshot := filepath.Join(root, "models--org--name", "snapshots", commit1)
	blobs := filepath.Join(root, "models--org--name", "blobs")
	shared := filepath.Join(root, "blobs", "ab")
	must.Do(t, os.MkdirAll(blobs, 0o755))
	for path, content := range map[string]string{
		filepath.Join(snapshot, "config.json"): "{}", filepath.Join(snapshot, "vocab.txt"): "wor", filepath.Join(shared, "xet"): "weights",
	} {
		must.Write(t, path, content)
	}
	for link, target := range map[string]string{
		filepath.Join(snapshot, "tokenizer.json"):          "../../blobs/gone",
		filepath.Join(blobs, sha256Of("weights")):          "../../blobs/ab/xet",
		filepath.Join(snapshot, "special_tokens_map.json"): "../../blobs/gone",
	} {
		must.Do(t, os.Symlink(target, link))
	}
	m := c.get(t, "org/name")
	for name, want := range files {
		expect.Same(t, want, must.Read(t, filepath.Join(m.Dir, name)), "%s", name)
	}
	for _, line := range h.taken() {
		expect.True(t, !strings.HasPrefix(line, "STORE") && !strings.HasSuffix(line, "/config.json"), "%s: it was there", line)
	}
}

// An abbreviated commit is found in the cache, even offline; if it is ambiguous, the Hub decides.
func TestModelOfAShortCommit(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, tinyModel(), name)
	c.get(t, "org/name")
	h.taken()
	m := c.get(t, "org/name@1111111")
	expect.True(t, m.Commit == commit1 && len(h.taken()) == 0, "%+v, and the Hub was asked", m)
	t.Setenv("HF_HUB_OFFLINE", "1")
	expect.Same(t, commit1, c.get(t, "org/name@"+commit1[:12]).Commit, "commit")
	for _, revision := range []string{"111111", "1111112", "g111111"} {
		c.refuses(t, "org/name@"+revision, "nothing of org/name@"+revision+" is in the cache")
	}
	must.Do(t, os.Mkdir(filepath.Join(filepath.Dir(m.Dir), "1111111"+commit2[7:]), 0o755))
	c.refuses(t, "org/name@1111111", "nothing of")
}

// A name that looks like a path is never sent to the Hub.
func TestPathsNeverGoToTheHub(t *testing.T) {
	h, c := newFake(t), newTester()
	t.Setenv("HF_TOKEN", "hf_secret")
	for _, path := range []string{"./org/name", "../name", "/org/name", "~/name", "org/name/", "a/b/c", `org\name`, ".", ".."} {
		expect.Fails(c.Model(t.Context(), path, Weights))(t, "%s is a model", path)
	}
	log := h.taken()
	expect.True(t, len(log) == 0, "the Hub was asked: %q", log)
}

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
	left, _ := filepath.Glob(filepath.Join(os.Getenv("RLTRAIN_CACHE"), "downloads", "*.whl*")) // the lock file stays
	expect.True(t, len(left) <= 1, "downloads were left: %q", left)
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
			expect.Failure(new(Client).Pull(t.Context(), "word"))(t, c.want...)
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
