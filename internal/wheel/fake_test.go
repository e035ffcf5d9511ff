package wheel

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// fakeIndex is a package index with one wheel of the project p.
type fakeIndex struct {
	*httptest.Server
	wheel []byte
	json  bool // answers in JSON
	// answer, if not nil, answers a request itself.
	answer func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	requests []string // path and range
	sent     int64    // bytes of the wheel
}

// noise are bytes that do not compress.
func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// newIndex serves a wheel of about size bytes, and isolates the test from the user's settings.
func newIndex(t *testing.T, size int) *fakeIndex {
	t.Helper()
	for _, name := range []string{
		"PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_PROXY", "VIRTUAL_ENV", "NETRC",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	t.Setenv("HOME", t.TempDir())
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, content := range map[string][]byte{"p/lib/big.so": noise(size), "p/lib/sub/x.txt": []byte("x"), "p/__init__.py": []byte("no"), "p-1.dist-info/LICENSE": []byte("licence")} {
		f := must.Get(w.Create(name))(t)
		must.Get(f.Write(content))(t)
	}
	must.Do(t, w.Close())
	i := &fakeIndex{wheel: b.Bytes()}
	i.Server = httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.Close)
	t.Setenv("PIP_INDEX_URL", i.URL+"/simple/")
	return i
}

func (i *fakeIndex) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.requests = append(i.requests, r.URL.Path+" "+r.Header.Get("Range"))
	i.mu.Unlock()
	switch {
	case i.answer != nil && i.answer(w, r):
	case r.URL.Path == "/simple/p/" && i.json:
		w.Header().Set("Content-Type", jsonType)
		_ = json.NewEncoder(w).Encode(map[string]any{"name": "p", "files": []any{
			map[string]any{"filename": "p-1.whl", "url": "../../files/p-1.whl", "hashes": map[string]string{"sha256": sumOf(i.wheel)}},
		}})
	case r.URL.Path == "/simple/p/":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<html><A class="x" href='../../files/p-0.whl'>p-0.whl</a> <a data-requires-python=">=3" href="../../files/p-1.whl#sha256=%s">p-1.whl</a></html>`, sumOf(i.wheel))
	case r.URL.Path == "/files/p-1.whl":
		http.ServeContent(counting{w, i}, r, "p-1.whl", time.Time{}, bytes.NewReader(i.wheel))
	default:
		http.NotFound(w, r)
	}
}

// rest is the part of the wheel that a request asks for; its headers are sent.
func (i *fakeIndex) rest(w http.ResponseWriter, r *http.Request) []byte {
	from := 0
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
	w.Header().Set("Content-Length", fmt.Sprint(len(i.wheel)-from))
	if from > 0 {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(i.wheel)-1, len(i.wheel)))
		w.WriteHeader(http.StatusPartialContent)
	}
	return i.wheel[from:]
}

// counting counts the bytes of the wheel.
type counting struct {
	http.ResponseWriter
	i *fakeIndex
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.i.mu.Lock()
	c.i.sent += int64(n)
	c.i.mu.Unlock()
	return n, err
}

// set takes the wheel's library.
func (i *fakeIndex) set() Set {
	return Set{Name: "a/set-1", Bytes: int64(len(i.wheel)), Parts: []Part{{
		Wheel:  Wheel{Project: "p", File: "p-1.whl", SHA256: sumOf(i.wheel), Size: int64(len(i.wheel))},
		Places: map[string]string{"p/lib/": "lib/", "p-1.dist-info/LICENSE": "LICENSE"},
	}}}
}

// patient is a client that does not wait between attempts.
func patient(cache string) *Client {
	return &Client{Cache: cache, sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }}
}

// wantSet expects the files of the set in its folder, and nothing else in the cache.
func wantSet(t *testing.T, i *fakeIndex, cache string) {
	t.Helper()
	dir := filepath.Join(cache, "a", "set-1")
	big := must.Get(os.ReadFile(filepath.Join(dir, "lib", "big.so")))(t)
	expect.True(t, bytes.Equal(big, noise(len(big))), "the library is damaged")
	for name, want := range map[string]string{"lib/sub/x.txt": "x", "LICENSE": "licence"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		expect.True(t, string(got) == want, "%s: %q, %v", name, got, err)
	}
	expect.Fails(os.Stat(filepath.Join(dir, "__init__.py")))(t, "other members were unpacked")
	expect.True(t, i.set().complete(dir), "the folder is not complete")
	wantFiles(t, filepath.Join(cache, "downloads"), ".lock")
	wantFiles(t, filepath.Join(cache, "a"), "set-1")
}

// wantFiles expects exactly the named files in a folder.
func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	expect.Require(t, err == nil || len(want) == 0, "%v", err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	expect.Same(t, fmt.Sprint(want), fmt.Sprint(got), "%s has %q, want %q", dir, got, want)
}
