package hub

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestParseRepo(t *testing.T) {
	for text, want := range map[string]repo{
		"org/name":                {modelKind, "org/name", "main"},
		"gpt2":                    {modelKind, "gpt2", "main"},
		"Org_1/a.b-c_d@v1.0":      {modelKind, "Org_1/a.b-c_d", "v1.0"},
		"org/name@refs/pr/3":      {modelKind, "org/name", "refs/pr/3"},
		"org/name@" + commit1:     {modelKind, "org/name", commit1},
		"org/name@feature/a@b+c":  {modelKind, "org/name", "feature/a@b+c"},
		strings.Repeat("a", 96):   {modelKind, strings.Repeat("a", 96), "main"},
		"":                        {},
		"a/b/c":                   {},
		"org/":                    {},
		"-org/name":               {},
		"org/name.":               {},
		"org/na--me":              {},
		"org/name.git":            {},
		"örg/name":                {},
		strings.Repeat("a", 97):   {},
		"org/name@":               {},
		"org/name@../x":           {},
		"org/name@a//b":           {},
		"org/name@a\\b":           {},
		"org/name@a\x00":          {},
		"https://hub/org/name":    {},
		"datasets/org/name@main ": {},
	} {
		got, err := parseRepo(modelKind, text)
		expect.True(t, got == want && (err == nil) == (want.id != ""), "%q: got %+v, %v", text, got, err)
	}
	r := repo{datasetKind, "org/name", "v1"}
	expect.Same(t, "org/name@v1 datasets--org--name datasets/org/name", r.String()+" "+r.cacheName()+" "+r.page(), "String")
}

func FuzzParseRepo(f *testing.F) {
	for _, text := range []string{"org/name", "gpt2@main", "a/b@refs/pr/1", "../x", "a--b", "a@..", "a/b@c\\d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRepo(modelKind, text)
		if err != nil {
			expect.True(t, !strings.Contains(err.Error(), "\n"), "%q", err)
			return
		}
		s := store{dir: filepath.Join("/cache", r.cacheName())}
		ref := filepath.Join(s.dir, "refs", r.revision)
		expect.True(t, strings.HasPrefix(ref, "/cache/models--") && strings.HasPrefix(ref, s.dir+"/refs/") && !strings.Contains(r.cacheName(), "/"), "%q leads to %s", text, ref)
		again, err := parseRepo(modelKind, r.String())
		expect.True(t, err == nil && again == r, "%q is %+v, then %+v, %v", text, r, again, err)
	})
}

func FuzzParseListing(f *testing.F) {
	for _, text := range []string{
		`{"sha":"` + commit1 + `","siblings":[{"rfilename":"a/b.json","size":3,"blobId":"` + commit2 + `","lfs":{"sha256":"x"}},{"rfilename":"../c"},{"rfilename":"a\\\\..\\\\b"},{"rfilename":"c:d"},{"rfilename":"d","size":-1}]}`,
		`{"sha":"main","siblings":null}`, `[]`, `{"siblings":[{"rfilename":null,"size":1e99}]}`, `{`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		commit, found, err := parseListing(data)
		if err != nil {
			return
		}
		expect.Same(t, 40, len(commit), "commit %q", commit)
		for name, file := range found {
			// Inside on any system.
			inside := strings.HasPrefix(filepath.Join("/cache", name), "/cache/") && !strings.ContainsAny(name, "\\:\x00")
			expect.True(t, inside && file.size >= -1, "%q of size %d", name, file.size)
		}
	})
}

func TestEnvironment(t *testing.T) {
	newFake(t)
	user := t.TempDir()
	for _, tc := range []struct {
		set   map[string]string
		cache string
	}{
		{nil, "USER/.cache/huggingface/hub"},
		{map[string]string{"XDG_CACHE_HOME": "/xdg"}, "/xdg/huggingface/hub"},
		{map[string]string{"XDG_CACHE_HOME": "/xdg", "HF_HOME": "~/hf"}, "USER/hf/hub"},
		{map[string]string{"HF_HOME": "$BASE/${BASE}/$NONE"}, "/base/base/$NONE/hub"},
		{map[string]string{"HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"},
		{map[string]string{"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new"},
	} {
		for _, variable := range []string{"XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"} {
			t.Setenv(variable, tc.set[variable])
		}
		t.Setenv("HOME", user)
		t.Setenv("BASE", "/base")
		_, cache, err := folders()
		expect.True(t, err == nil && cache == filepath.Clean(strings.Replace(tc.cache, "USER", user, 1)), "%v: %s, %v", tc.set, cache, err)
	}
	t.Setenv("HOME", "") // as in services and containers
	t.Setenv("HF_HUB_CACHE", "/new")
	if _, cache, err := folders(); err != nil || cache != "/new" {
		t.Errorf("without $HOME: %s, %v", cache, err)
	}
	if cache, err := CacheDir(); err != nil || !filepath.IsAbs(cache) {
		t.Errorf("without $HOME: %s, %v", cache, err)
	}
	for _, tc := range []struct {
		set                   map[string]string
		model, dataset, token string
	}{
		{nil, "", "", "of the file"},
		{map[string]string{"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE", "HF_HUB_OFFLINE", "of the file"},
		{map[string]string{"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"}, "", "", "of the file"},
		{map[string]string{"TRANSFORMERS_OFFLINE": "true"}, "TRANSFORMERS_OFFLINE", "TRANSFORMERS_OFFLINE", "of the file"},
		{map[string]string{"HF_DATASETS_OFFLINE": "On"}, "", "HF_DATASETS_OFFLINE", "of the file"},
		{map[string]string{"HF_TOKEN": " new\n", "HUGGING_FACE_HUB_TOKEN": "old"}, "", "", "new"},
		{map[string]string{"HUGGING_FACE_HUB_TOKEN": "old"}, "", "", "old"},
		{map[string]string{"HF_TOKEN": "new", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "YES"}, "", "", ""},
		{map[string]string{"HF_TOKEN_PATH": "/none"}, "", "", ""},
	} {
		home := t.TempDir()
		must.Write(t, filepath.Join(home, "token"), "of the file\n")
		for _, variable := range []string{
			"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_TOKEN_PATH",
		} {
			t.Setenv(variable, tc.set[variable])
		}
		got, _, err := userToken(home)
		expect.True(t, err == nil && got == tc.token, "%v: token %q, %v", tc.set, got, err)
		m, d := offline(modelKind), offline(datasetKind)
		expect.True(t, m == tc.model && d == tc.dataset, "%v: offline by %q and %q", tc.set, m, d)
	}
	t.Setenv("HF_HUB_DOWNLOAD_TIMEOUT", "3")
	t.Setenv("HF_ENDPOINT", "https://mirror/hf/")
	s, err := new(Client).session(repo{modelKind, "org/name", "main"})
	expect.True(t, err == nil && s.Endpoint == "https://mirror/hf" && s.bytesTimeout == 3*time.Second && s.answerTimeout == 10*time.Second, "%+v, %v", s, err)
	for variable, bad := range map[string]string{"HF_ENDPOINT": "mirror", "HF_HUB_ETAG_TIMEOUT": "soon", "HF_HUB_DOWNLOAD_TIMEOUT": "0", "HF_TOKEN_PATH": t.TempDir()} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, bad)
			_, err := new(Client).Model(t.Context(), "org/name", Weights)
			want := variable + " is "
			if variable == "HF_TOKEN_PATH" {
				want = "reading the token: "
			}
			wantError(t, variable, err, "model org/name: "+want)
		})
	}
}

// tinyGGUF is a small GGUF model.
const tinyGGUF = "../transformers/testdata/gguf/llama-Q4_1.gguf"

func TestGGUFModels(t *testing.T) {
	content := must.Read(t, tinyGGUF)
	h := newFake(t)
	here := must.Get(os.Getwd())(t)
	h.refs["models/org/one@main"] = commit1
	h.files[commit1] = map[string]string{"a.Q4_1.gguf": content, "mmproj-a.gguf": "x", "README.md": ""}
	h.refs["models/org/many@main"] = commit2
	h.files[commit2] = map[string]string{"a.gguf": content, "b.gguf": content, "model.safetensors": "x", "config.json": "{}"}
	must.Write(t, "one/m.gguf", content)
	must.Write(t, "many/a.gguf", content)
	must.Write(t, "many/b.gguf", content)
	must.Write(t, "both/a.gguf", content)
	must.Write(t, "both/config.json", "{}")
	must.Write(t, "both/model.safetensors", "x")
	must.Write(t, "bad.gguf", content[:100])
	must.Write(t, "weights.bin", content)
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
		expect.True(t, !strings.HasSuffix(c.name, ".gguf") || exists(filepath.Join(got.Dir, "config.json")) && exists(filepath.Join(got.Dir, "model.gguf")),
			"%s: %s is not a model folder", c.model, got.Dir)
	}
}

// All parts of a split file are fetched, and no others.
func TestSplitGGUF(t *testing.T) {
	const parts = "../gguf/testdata/split-0000"
	first, second := must.Read(t, parts+"1-of-00002.gguf"), must.Read(t, parts+"2-of-00002.gguf")
	h, c := newFake(t), newTester()
	h.publish(commit1, map[string]string{
		"m-00001-of-00002.gguf": first, "m-00002-of-00002.gguf": second, "n-00002-of-00002.gguf": second, "m-00002-of-00003.gguf": second,
	}, name)
	c.refuses(t, "org/name/m-00001-of-00002.gguf", "token_embd.weight is missing") // both were read
	var fetched []string
	for _, line := range h.taken() {
		if file, ok := strings.CutPrefix(line, "GET /org/name/resolve/"+commit1+"/"); ok {
			fetched = append(fetched, file)
		}
	}
	slices.Sort(fetched)
	expect.Equal(t, []string{"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}, fetched)
}

// A changed file is read again.
func TestGGUFChanges(t *testing.T) {
	content := must.Read(t, tinyGGUF)
	newFake(t)
	must.Write(t, "m.gguf", content)
	first := must.Get(new(Client).Model(t.Context(), "m.gguf", Weights))(t)
	again, err := new(Client).Model(t.Context(), "m.gguf", Weights)
	expect.True(t, err == nil && again == first, "%+v, %v; want %+v", again, err, first)
	must.Write(t, "m.gguf", content+"\x00")
	other, err := new(Client).Model(t.Context(), "m.gguf", Weights)
	expect.True(t, err == nil && other.Dir != first.Dir, "%+v, %v; want another folder", other, err)
}

// fetched returns the contents of a dataset's files with the given name prefix, ordered by name.
func fetched(t *testing.T, c *tester, dataset, prefix string) ([]string, error) {
	t.Helper()
	var chosen []string
	dir, err := c.Dataset(t.Context(), dataset, func(names []string, readme []byte) ([]string, error) {
		expect.Same(t, readme != nil, slices.Contains(names, "README.md"), "README.md of %q is %q", names, readme)
		chosen = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) })
		if len(chosen) == 0 {
			return nil, fmt.Errorf("there is no %s", prefix)
		}
		return chosen, nil
	})
	if err != nil {
		return nil, err
	}
	var contents []string
	for _, name := range chosen {
		contents = append(contents, must.Read(t, filepath.Join(dir, name)))
	}
	return contents, nil
}

func TestDatasetFromTheHub(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, map[string]string{
		"README.md":                         "# A data set",
		"data/train-00000-of-00002.parquet": "first", "data/train-00001-of-00002.parquet": "second", "data/test-00000-of-00001.parquet": "third",
	}, "datasets/org/set@main")
	got, err := fetched(t, c, "org/set", "data/train")
	diff := cmp.Diff([]string{"first", "second"}, got)
	expect.True(t, diff == "" && err == nil, "%v %v", err, diff)
	for _, line := range h.taken() {
		path := strings.Fields(line)[1]
		expect.True(t, (!strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/api/datasets/org/set/") || strings.HasPrefix(path, "/datasets/org/set/resolve/")) && !strings.Contains(line, "data/test"), "asked for %s", line)
	}
	root := filepath.Join(os.Getenv("HF_HOME"), "hub", "datasets--org--set")
	expect.Same(t, commit1, must.Read(t, filepath.Join(root, "refs", "main")), "refs/main")
	t.Setenv("HF_DATASETS_OFFLINE", "yes")
	h.taken()
	got, err = fetched(t, c, "org/set", "data/train")
	expect.True(t, err == nil && len(got) == 2, "offline: %q, %v", got, err)
	must.Do(t, os.Remove(filepath.Join(root, "snapshots", commit1, "data", "train-00001-of-00002.parquet")))
	_, err = fetched(t, c, "org/set", "data/train")
	wantError(t, "a lost shard", err, "dataset org/set: data/train-00001-of-00002.parquet: not in the cache", "HF_DATASETS_OFFLINE forbids downloads")
	_, err = fetched(t, c, "org/none", "data/train")
	wantError(t, "nothing", err, `dataset "org/none" is neither a file nor a folder, and nothing of org/none is in the cache`)
	log := h.taken()
	expect.True(t, len(log) == 0, "requests were made: %q", log)
}

func TestDatasetConversion(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, map[string]string{"script.py": "", "all.tar": "x"}, "datasets/org/set@main")
	_, err := fetched(t, c, "org/set", "default/")
	wantError(t, "no conversion", err, "there is no default/", `its conversion to parquet: it has no branch, tag or commit "refs/convert/parquet"`)
	h.publish(commit2, map[string]string{
		".gitattributes": "", "default/train/0000.parquet": "first", "default/train/0001.parquet": "second", "plain/train/0000.parquet": "third",
	}, "datasets/org/set@refs/convert/parquet")
	got, err := fetched(t, c, "org/set", "default/train/")
	diff := cmp.Diff([]string{"first", "second"}, got)
	expect.True(t, diff == "" && err == nil, "%v %v", err, diff)
	_, err = fetched(t, c, "org/set", "default/dev")
	wantError(t, "no such file", err, "there is no default/dev")
	_, err = fetched(t, c, "org/set@"+commit1, "default/")
	wantError(t, "a revision has no conversion", err, "there is no default/")
	_, err = fetched(t, c, "./none/here", "default/")
	wantError(t, "a path", err, "does not exist, and it names no repository")
}

func TestLostShards(t *testing.T) {
	names := []string{"a-00000-of-00002.parquet", "b-00001-of-00002.csv", "c.json", "d-00000-of-99999.json"}
	lost := lostShards(names)
	expect.True(t, lost[0] == "a-00001-of-00002.parquet" && lost[1] == "b-00000-of-00002.csv" && len(lost) == 2+99998, "got %d: %s", len(lost), some(lost))
	expect.Same(t, "a-00001-of-00002.parquet, b-00000-of-00002.csv, d-00001-of-99999.json and 99997 more", some(lost), "some")
}
