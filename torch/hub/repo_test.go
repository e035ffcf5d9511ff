package hub

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
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
		expect.True(t, got == want && (err == nil) == (want.id != ""), "%q: got %+v, %v", text, got, err)
	}
	r := repo{datasetKind, "org/name", "v1"}
	expect.Same(t, "org/name@v1 datasets--org--name datasets/org/name", r.String()+" "+r.cacheName()+" "+r.page(),
		"String")
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
		if !strings.HasPrefix(ref, "/cache/models--") || !strings.HasPrefix(ref, s.dir+"/refs/") || strings.Contains(r.cacheName(), "/") {
			t.Errorf("%q leads to %s", text, ref)
		}
		again, err := parseRepo(modelKind, r.String())
		expect.True(t, err == nil && again == r, "%q is %+v, then %+v, %v", text, r, again, err)
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
		expect.Same(t, 40, len(commit), "commit %q", commit)
		for name, file := range found {
			expect.True(t, strings.HasPrefix(filepath.Join("/cache", name), "/cache/") && file.size >= -1,
				"%q of size %d", name, file.size)
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
		expect.True(t, err != nil || len(shards) != 0, "no shards and no error")
		for _, shard := range shards {
			expect.Same(t, "/cache", filepath.Dir(filepath.Join("/cache", shard)), "shard %q", shard)
		}
	})
}
