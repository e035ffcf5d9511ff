package hub

import (
	"path/filepath"
	"strings"
	"testing"
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
		"/name":                   {},
		"org/":                    {},
		"-org/name":               {},
		"org/name.":               {},
		"org/na--me":              {},
		"org/na..me":              {},
		"org/name.git":            {},
		"org/na me":               {},
		"örg/name":                {},
		"../name":                 {},
		strings.Repeat("a", 97):   {},
		"org/name@":               {},
		"org/name@../x":           {},
		"org/name@/x":             {},
		"org/name@a//b":           {},
		"org/name@a/./b":          {},
		"org/name@a b":            {},
		"org/name@a\\b":           {},
		"org/name@a\x00":          {},
		"https://hub/org/name":    {},
		"hf://datasets/org/name":  {},
		"datasets/org/name@main ": {},
	} {
		got, err := parseRepo(modelKind, text)
		if got != want || (err == nil) != (want.id != "") {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
	r := repo{datasetKind, "org/name", "v1"}
	if got := r.String() + " " + r.cacheName() + " " + r.page(); got != "org/name@v1 datasets--org--name datasets/org/name" {
		t.Errorf("got %q", got)
	}
}

func FuzzParseRepo(f *testing.F) {
	for _, text := range []string{"org/name", "gpt2@main", "a/b@refs/pr/1", "../x", "a--b", "a@..", "a/b@c\\d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRepo(modelKind, text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		s := store{dir: filepath.Join("/cache", r.cacheName())}
		ref := filepath.Join(s.dir, "refs", r.revision)
		if !strings.HasPrefix(ref, "/cache/models--") || !strings.HasPrefix(ref, s.dir+"/refs/") || strings.Contains(r.cacheName(), "/") {
			t.Errorf("%q leads to %s", text, ref)
		}
		again, err := parseRepo(modelKind, r.String())
		if err != nil || again != r {
			t.Errorf("%q is %+v, then %+v, %v", text, r, again, err)
		}
	})
}

func FuzzParseListing(f *testing.F) {
	for _, text := range []string{
		`{"sha":"` + commit1 + `","siblings":[{"rfilename":"a/b.json","size":3,"blobId":"` + commit2 + `","lfs":{"sha256":"x"}},{"rfilename":"../c"},{"rfilename":"d","size":-1}]}`,
		`{"sha":"main","siblings":null}`, `[]`, `{"siblings":[{"rfilename":null,"size":1e99}]}`, `{`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		commit, found, err := parseListing(data)
		if err != nil {
			return
		}
		if len(commit) != 40 {
			t.Errorf("commit %q", commit)
		}
		for name, file := range found {
			if path := filepath.Join("/cache", name); !strings.HasPrefix(path, "/cache/") || file.size < -1 {
				t.Errorf("%q of size %d", name, file.size)
			}
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	for _, text := range []string{
		`{"weight_map":{"a":"model-00001-of-00001.safetensors"}}`, `{"weight_map":{"a":"../x.safetensors"}}`, `{"weight_map":{}}`, `{"weight_map":{"a":1}}`, `[`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		shards, err := parseIndex(data, ".safetensors")
		if err == nil && len(shards) == 0 {
			t.Error("no shards and no error")
		}
		for _, shard := range shards {
			if filepath.Dir(filepath.Join("/cache", shard)) != "/cache" {
				t.Errorf("shard %q", shard)
			}
		}
	})
}
